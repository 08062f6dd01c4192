"""Methods of token reduction, all on the one socket `zerotprune.block.Method`."""

from .slicing import Slicing
from .top_k import TopK
from .zero_tprune import ZeroTPrune

__all__ = ["Slicing", "TopK", "ZeroTPrune"]
