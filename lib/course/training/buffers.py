"""torch's DistributedDataParallel with buffers that no forward pass synchronizes."""

import inspect
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel


def ddp_without_buffer_sync(net: nn.Module) -> DistributedDataParallel:
    """Wrap `net` so that each rank keeps its own buffers; torch 2.13 renamed the option."""
    options = inspect.signature(DistributedDataParallel).parameters
    new, old = "forward_sync_buffers", "broadcast_buffers"
    off: dict[str, Any] = {new if new in options else old: False}
    return DistributedDataParallel(net, **off)
