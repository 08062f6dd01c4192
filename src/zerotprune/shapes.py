"""Types that many modules share: shapes, batches, precisions.

Shapes are jaxtyping's if it is installed, else stand-ins: the library needs torch alone. The tests
have jaxtyping and check every shape.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from torch import Tensor

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ImportError:

        class _Unchecked:
            def __class_getitem__(cls, item):
                return item[0]

        Bool = Float = Int = Shaped = _Unchecked

#: images, their labels, and their indices in the data set
Batch = tuple[Tensor, Tensor, Tensor]
#: of a model and its images; names of torch's types
Precision = Literal["float32", "bfloat16", "float16"]

__all__ = ["Batch", "Bool", "Float", "Int", "Precision", "Shaped"]
