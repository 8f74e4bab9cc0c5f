"""FSDP: a model in units, each gathered only while it computes, its gradients reduced right after.

ZeRO's stage 3 (`zero3.ZeRO3`) leaves freeing the weights to autograd, which keeps them from
forward to backward. Here hooks gather every unit for its forward, free it, gather it again for
its backward, and free it. While one unit computes, the next is on its way::

    model = FSDP(net, net.blocks, comm)
    optimizer = torch.optim.AdamW(model.shards)
    loss_of(model(x), y).backward()
    model.synchronize()
    optimizer.step()
    optimizer.zero_grad()

Rajbhandari et al., *ZeRO* (2020), section 5.3; Zhao et al., *PyTorch FSDP* (2023), section 3.
"""

# mypy: disable-error-code=no-untyped-call
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn import Parameter

from from_scratch import Comm, Work
from from_scratch.zero import FlatParameters


class FSDP:
    """A model whose weights, gradients and optimizer state are sharded, unit by unit.

    Args:
        module: the model, itself a unit of the parameters that no other unit has.
        blocks: modules in it, nested or not, that become units of their own.
        comm: the collectives of the ranks.
        prefetch: start gathering the next unit while one computes.
    """

    def __init__(
        self, module: nn.Module, blocks: Iterable[nn.Module], comm: Comm, prefetch: bool = True
    ) -> None:
        self.module, self.comm, self.prefetch = module, comm, prefetch
        for buffer in module.buffers():
            comm.broadcast(buffer)  # as each unit does with its parameters
        self.units: list[Unit] = []
        taken: set[Parameter] = set()
        innermost_first = sorted([*blocks, module], key=lambda each: len(list(each.modules())))
        for each in innermost_first:
            own = [parameter for parameter in each.parameters() if parameter not in taken]
            if own:
                self.units.append(Unit(self, each, own))
            taken.update(own)
        self.forward_order: list[Unit] = []  # found out in the first step
        self.backward_order: list[Unit] = []
        self.in_flight: Work | None = None  # the last unit's reduce-scatter

    def __call__(self, *args: Any) -> Any:
        """The module's output."""
        return self.module(*args)

    @property
    def shards(self) -> list[Parameter]:
        """One flat tensor for each unit, for the optimizer to step on."""
        return [unit.shard for unit in self.units]

    def synchronize(self) -> None:
        """Wait for the last gradients."""
        if self.in_flight:
            self.in_flight.wait()

    def start_next(self, unit: Unit, order: list[Unit]) -> None:
        """Start gathering the unit that followed this one in the last step."""
        if unit not in order:
            order.append(unit)
        following = order.index(unit) + 1
        if self.prefetch and following < len(order):
            order[following].begin_unshard()


class Unit(FlatParameters):
    """A module's parameters in one buffer, gathered while it computes, and this rank's shard."""

    def __init__(self, model: FSDP, module: nn.Module, parameters: list[Parameter]) -> None:
        super().__init__(parameters, model.comm)
        self.model = model
        self.shard = Parameter(self.shard.detach().clone())  # it stays when the buffer is freed
        self.gathering: Work | None = None
        self.arrived = 0  # gradients, in this backward
        self.reshard()
        module.register_forward_pre_hook(self.pre_forward)
        module.register_forward_hook(self.post_forward)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self.gradient_ready)

    # ---- a unit's life ----

    def pre_forward(self, *_: Any) -> None:
        """1. Gather the weights, and start gathering the next unit's."""
        self.unshard()
        self.model.start_next(self, self.model.forward_order)

    def post_forward(self, _: nn.Module, args: Any, output: Tensor) -> None:
        """2. Free them; when backward reaches the output, gather them again."""
        self.reshard()
        if output.requires_grad:
            output.register_hook(self.pre_backward)

    def pre_backward(self, _: Tensor) -> None:
        """3. Gather the weights, and start gathering those of the unit that ran before."""
        self.unshard()
        self.model.start_next(self, self.model.backward_order)

    def gradient_ready(self, _: Parameter) -> None:
        """4. After the last gradient, free the weights and reduce the gradients."""
        self.arrived += 1
        if self.arrived == len(self.parameters):
            self.arrived = 0
            self.reshard()
            before, self.model.in_flight = self.model.in_flight, self.reduce_gradients(True)
            if before:
                before.wait()

    # ---- what happens in it ----

    def begin_unshard(self) -> None:
        """Start gathering the weights, unless they are here or on their way."""
        storage = self.buffer.untyped_storage()
        if storage.size() == 0:
            storage.resize_(self.buffer.nbytes)
            self.gathering = self.comm.all_gather(self.buffer, self.shard.detach(), async_op=True)

    def unshard(self) -> None:
        """Gather the weights."""
        self.begin_unshard()
        if self.gathering:
            self.gathering.wait()
            self.gathering = None

    def reshard(self) -> None:
        """Free the weights; the shard stays."""
        self.buffer.untyped_storage().resize_(0)
