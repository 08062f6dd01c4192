"""Methods of token reduction, all on the one socket `zerotprune.block.Method`."""

from ..block import Method
from .ats import ATS
from .diffrate import DiffRate
from .evit import EViT
from .slicing import Slicing
from .tome import ToMe
from .top_k import TopK
from .zero_tprune import ZeroTPrune

__all__ = ["ATS", "DiffRate", "EViT", "Method", "Slicing", "ToMe", "TopK", "ZeroTPrune"]
