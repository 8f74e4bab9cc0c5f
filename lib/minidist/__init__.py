"""torch.distributed in miniature, written to be read: see the book in this repository."""

from torch.distributed import ReduceOp

from minidist.agree import MismatchError
from minidist.call import record
from minidist.choose import Explanation, explain
from minidist.clip import clip_grad_norm_
from minidist.collectives import (
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from minidist.comm import Counted, Native, Ours
from minidist.ddp import DistributedDataParallel
from minidist.exchange import all_to_all, all_to_all_single, barrier, ring_shift
from minidist.execute import CommunicationError
from minidist.failure import RankError
from minidist.fsdp import fully_shard
from minidist.launch import device, launch
from minidist.lists import all_gather, gather, reduce_scatter, scatter
from minidist.map_reduce import MapReduced, TaskError, map_reduce
from minidist.materialize import materialize
from minidist.replicas import ReplicaError, check_replicas
from minidist.rooted import broadcast, reduce
from minidist.timeline import timeline
from minidist.whole import full_gradients, full_state_dict, load_full_state_dict
from minidist.zero import ZeroOptimizer

__all__ = [
    "CommunicationError",
    "Counted",
    "DistributedDataParallel",
    "Explanation",
    "MapReduced",
    "MismatchError",
    "Native",
    "Ours",
    "RankError",
    "ReduceOp",
    "ReplicaError",
    "TaskError",
    "ZeroOptimizer",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_single",
    "all_reduce",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "check_replicas",
    "clip_grad_norm_",
    "device",
    "explain",
    "full_gradients",
    "full_state_dict",
    "fully_shard",
    "gather",
    "launch",
    "load_full_state_dict",
    "map_reduce",
    "materialize",
    "record",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "ring_shift",
    "scatter",
    "timeline",
]
