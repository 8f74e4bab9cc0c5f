"""torch.distributed in miniature, written to be read: see the book in this repository."""

import sys

if sys.platform == "win32":
    raise ImportError(
        "minidist runs on Linux, on macOS, and on Windows inside WSL: it needs fcntl, resource and "
        "forked processes, which Python does not have on Windows"
    )

from torch.distributed import ReduceOp

from minidist.collectives.call import record
from minidist.collectives.lists import (
    all_gather,
    all_to_all,
    all_to_all_single,
    gather,
    reduce_scatter,
    ring_shift,
    scatter,
)
from minidist.collectives.tensor import (
    all_gather_into_tensor,
    all_gather_single,
    all_reduce,
    barrier,
    broadcast,
    reduce,
    reduce_scatter_single,
    reduce_scatter_tensor,
)
from minidist.collectives.tuner import Explanation, explain
from minidist.comm.counted import Counted
from minidist.comm.native import Native
from minidist.comm.ours import Ours
from minidist.comm.replicas import check_replicas
from minidist.errors import CommunicationError, MismatchError, RankError, ReplicaError, TaskError
from minidist.launch.device import device
from minidist.launch.launch import launch
from minidist.mapreduce.map_reduce import MapReduced, map_reduce
from minidist.parallel.ddp.ddp import DistributedDataParallel
from minidist.parallel.fsdp.fully_shard import fully_shard
from minidist.parallel.fsdp.muon import Muon
from minidist.parallel.full_model.full_model import (
    clip_grad_norm_,
    full_gradients,
    full_state_dict,
    load_full_state_dict,
)
from minidist.parallel.full_model.meta_device import materialize
from minidist.parallel.zero.optimizer import ZeroOptimizer
from minidist.planner.planner import plan
from minidist.planner.search import search
from minidist.profiler.timeline import timeline

__all__ = [
    "CommunicationError",
    "Counted",
    "DistributedDataParallel",
    "Explanation",
    "MapReduced",
    "MismatchError",
    "Muon",
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
    "plan",
    "record",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "ring_shift",
    "scatter",
    "search",
    "timeline",
]
