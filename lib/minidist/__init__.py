"""torch.distributed in miniature, written to be read: see the book in this repository."""

from torch.distributed import ReduceOp

from minidist.agree import MismatchError
from minidist.collectives import all_gather_into_tensor, all_reduce, record, reduce_scatter_tensor
from minidist.execute import CommunicationError
from minidist.failure import RankError
from minidist.launch import device, launch

__all__ = [
    "CommunicationError",
    "MismatchError",
    "RankError",
    "ReduceOp",
    "all_gather_into_tensor",
    "all_reduce",
    "device",
    "launch",
    "record",
    "reduce_scatter_tensor",
]
