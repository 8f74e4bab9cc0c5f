"""ZeRO's stage 3 in one autograd function: the weights are sharded, and gathered for forward.

The gather is part of the graph. Its backward is its transpose, a reduce-scatter, and so autograd
itself shards the gradients. It also keeps the full weights from forward to backward; `fsdp.py`
frees them in between. Rajbhandari et al., *ZeRO* (2020), section 5.3.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import Parameter

from from_scratch import Comm
from from_scratch.zero import FlatParameters


class Gather(torch.autograd.Function):
    """All-gather of the shards; backward is its transpose, a reduce-scatter of the gradient."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor, comm: Comm) -> Tensor:
        """The full tensor, from every rank's shard."""
        ctx.comm = comm
        whole = shard.new_empty(comm.ranks * shard.numel())
        comm.all_gather(whole, shard.detach())
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """This rank's shard of the mean gradient, from its gradient of the full tensor."""
        mean = gradient.new_empty(gradient.numel() // ctx.comm.ranks)
        ctx.comm.reduce_scatter(mean, gradient / ctx.comm.ranks)
        return mean, None


class ZeRO3(nn.Module):
    """Stage 3: the weights are sharded too, and gathered from forward until autograd frees them.

    Of its parameters only the shard is not empty or frozen, so any optimizer has 1/N of the state.
    A weight that is not used gets a gradient of zeros.
    """

    def __init__(self, module: nn.Module, comm: Comm) -> None:
        super().__init__()
        named = {name: p for name, p in module.named_parameters() if p.requires_grad}
        for tensor in [*module.parameters(), *module.buffers()]:
            comm.broadcast(tensor.detach())
        self.module, self.comm, self.names = module, comm, list(named)
        self.flat = FlatParameters(list(named.values()), comm)
        self.shard = Parameter(self.flat.shard.detach().clone())
        self.running = False
        for parameter in named.values():
            parameter.data = parameter.new_empty(0)
        for part in module.modules():
            if any(p.requires_grad for p in part.parameters(recurse=False)):
                part.register_forward_pre_hook(self.check_running)
        del self.flat.buffer, self.flat.shard

    def weights(self) -> dict[str, Tensor]:
        """Gather all weights, by name."""
        full = Gather.apply(self.shard, self.comm)
        return dict(zip(self.names, self.flat.views(full), strict=True))

    def forward(self, *args: Any) -> Any:
        """The module's own forward, with gathered weights."""
        self.running = True
        output = torch.func.functional_call(self.module, self.weights(), args)
        self.running = False
        return output

    def check_running(self, part: nn.Module, _: Any) -> None:
        """Raise RuntimeError if a part runs without its weights."""
        if not self.running:
            kind = type(part).__name__
            raise RuntimeError(f"a {kind} runs outside of forward: activation checkpointing?")
