"""FSDP: a model in units, each gathered only while it computes, its gradients reduced right after.

ZeRO's stage 3 (`zero3.ZeRO3`) leaves freeing the weights to autograd, which keeps them from
forward to backward. Here hooks gather each unit for its forward, free it, and do both again for
its backward. While one unit computes, the next is on its way::

    model = FSDP(net, net.blocks, comm)
    optimizer = torch.optim.AdamW(model.shards)
    loss_of(model(x), y).backward()
    model.synchronize()
    optimizer.step()
    optimizer.zero_grad()

Rajbhandari et al., *ZeRO* (2020), section 5.3; Zhao et al., *PyTorch FSDP* (2023), section 3.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from from_scratch import Comm
from from_scratch.zero import FlatParameters


class FSDP:
    """A model whose weights, gradients and optimizer state are sharded, unit by unit.

    The `blocks` in it, nested or not, are units of their own, and the model is the unit of all
    other parameters. With `prefetch`, the next unit is gathered while one computes.
    """

    def __init__(
        self, module: nn.Module, blocks: Iterable[nn.Module], comm: Comm, prefetch: bool = True
    ) -> None:
        self.module, self.comm, self.prefetch = module, comm, prefetch
        for tensor in [*module.parameters(), *module.buffers()]:
            comm.broadcast(tensor.detach())  # frozen parameters stay on all ranks
        owned: dict[nn.Module, dict[Parameter, None]] = {each: {} for each in [*blocks, module]}
        home = {"": module}  # path of a module → the innermost unit around it
        for path, part in module.named_modules(remove_duplicate=False):
            home[path] = part if part in owned else home[path.rpartition(".")[0]]
            own = [p for p in part.parameters(recurse=False) if p.requires_grad]
            owned[home[path]] |= dict.fromkeys(own)
        if sum(map(len, owned.values())) > len(set().union(*owned.values())):
            raise ValueError("two units share a weight: make them one")
        self.units = [Unit(self, each, [*params]) for each, params in owned.items() if params]
        self.shards = [unit.shard for unit in self.units]  # for the optimizer to step on
        self.unused = {*self.units}  # whose gradients are still to come
        self.begun: list[Unit] = []  # the units of this forward, in order
        self.ended: list[Unit] = []  # those of them that backward will reach
        self.expected: list[Unit] = []  # the units of the last forward, in order
        self.last_reduce: Any = None

    def __call__(self, *args: Any) -> Any:
        """The module's output."""
        if self.last_reduce:
            raise RuntimeError("call synchronize() after each backward")
        for unit in self.units:
            unit.reshard()  # if the last forward has gathered it in vain
        self.expected, self.begun, self.ended = self.begun, [], []
        return self.module(*args)

    def synchronize(self) -> None:
        """Wait for the gradients, and free units that were gathered ahead and not needed."""
        if self.unused:
            raise RuntimeError("a parameter was not used in this step")
        self.unused = {*self.units}
        for unit in self.units:
            unit.reshard()
        if self.last_reduce:
            self.last_reduce.wait()
            self.last_reduce = None

    def start_next(self, units: list[Unit]) -> None:
        """Start gathering the first of these, if there is one."""
        for unit in units[: self.prefetch]:
            unit.unshard(wait=False)


class Unit(FlatParameters):
    """A module's parameters in one buffer, gathered while it computes, and this rank's shard."""

    def __init__(self, model: FSDP, module: nn.Module, parameters: list[Parameter]) -> None:
        super().__init__(parameters, model.comm)
        self.model = model
        self.shard = Parameter(self.shard.detach().clone())  # survives the buffer
        self.gathering: Any = None
        self.reshard()
        module.register_forward_pre_hook(self.pre_forward)
        module.register_forward_hook(self.post_forward)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.gradient_ready)

    # ---- a unit's life ----

    def pre_forward(self, *_: Any) -> None:
        """1. Gather the weights; start on the unit that followed in the last forward."""
        if self.buffer.untyped_storage().size() and not self.gathering:
            raise RuntimeError(
                "a unit runs while its weights are in use: activation checkpointing?"
            )
        self.unshard()
        self.model.begun.append(self)
        self.model.start_next(self.model.expected[len(self.model.begun) :])

    def post_forward(self, _: nn.Module, args: Any, output: Tensor) -> None:
        """2. Free them; when backward reaches the output, gather them again."""
        self.reshard()
        if not isinstance(output, Tensor):
            raise TypeError(f"a unit must return one tensor, not a {type(output).__name__}")
        if output.requires_grad:
            output.register_hook(partial(self.pre_backward, self.model.ended[-1:]))
            self.model.ended.append(self)

    def pre_backward(self, before: list[Unit], _: Tensor) -> None:
        """3. Gather the weights, and start gathering those of the unit that ran before."""
        self.unshard()
        self.model.start_next(before)

    def gradient_ready(self, _: Parameter) -> None:
        """4. After the last gradient, free the weights and reduce the gradients."""
        self.missing -= 1
        if not self.missing:
            self.reshard()
            self.model.unused.discard(self)
            self.model.last_reduce = self.reduce_gradients(self.model.last_reduce)

    # ---- what happens in it ----

    def unshard(self, wait: bool = True) -> None:
        """Gather the weights, unless they are here; without `wait`, only start to."""
        storage = self.buffer.untyped_storage()
        if storage.size() == 0:
            storage.resize_(self.buffer.nbytes)
            self.gathering = self.comm.all_gather(self.buffer, self.shard.detach(), async_op=True)
        if wait and self.gathering:
            self.gathering.wait()
            self.gathering = None

    def reshard(self) -> None:
        """Free the weights; the shard stays."""
        if self.gathering:
            self.unshard()
        self.buffer.untyped_storage().resize_(0)
