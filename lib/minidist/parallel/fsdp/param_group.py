"""Parameters of one dtype that are gathered, freed and reduced together, and what each is between.

[Note: freed, and the same again] Autograd keeps references to weights, and to views of them, from
forward to backward. So the unsharded parameters are created once. Freeing them shrinks the memory
under them to nothing; gathering them again grows it and writes the same values there, and what
autograd kept is valid again. Autograd detects by a version counter that a tensor it kept was
written to. We write through `.data`, which has a counter of its own; and while the memory is gone
the parameters' counters are raised, so that a backward that reads them raises an error instead.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import increment_version
from torch.nn import Parameter

from minidist.comm.comm import Comm
from minidist.parallel.fsdp.shard import Replaced, Shard, ShardValues, no_torch_function
from minidist.parallel.sharding.layouts import RowLayout


class MixedPrecisionPolicy(NamedTuple):
    """The fields of torch's class of this name, whose import takes a second or more."""

    param_dtype: torch.dtype | None = None  # gathered parameters; None: as they are
    reduce_dtype: torch.dtype | None = None  # gradients as they are averaged; None: as gathered
    output_dtype: torch.dtype | None = None  # forward's output; None: as it is
    cast_forward_inputs: bool = True  # the floating-point ones, to param_dtype


class ParamInfo(NamedTuple):
    name: str
    parameter: Parameter
    places: list[tuple[nn.Module, str]]  # an attribute of a module


class ParamGroup:
    """Parameters of one dtype and device, all trainable or all frozen when they were wrapped."""

    def __init__(
        self,
        infos: Sequence[ParamInfo],
        unit_title: Callable[[], str],
        comms: Sequence[Comm],
        policy: MixedPrecisionPolicy,
    ) -> None:
        comm, self.comms = comms[0], comms
        self.names, parameters, self.places = map(list, zip(*infos, strict=True))
        shapes = [parameter.shape for parameter in parameters]
        self.layout = RowLayout(shapes, comm.ranks, comm.rank)
        self.dtype = parameters[0].dtype  # the shards' dtype
        casts = self.dtype.is_floating_point
        self.param_dtype = (policy.param_dtype if casts else None) or self.dtype
        self.reduce_dtype = (policy.reduce_dtype if casts else None) or self.param_dtype
        self.unsharded: list[Parameter] = []  # empty before the first time
        self.gradients: list[torch.Tensor | None] = [None] * len(infos)  # unsharded, not reduced
        self._unit_title, self._owner = unit_title, f"rank {comm.rank} of {comm.ranks}"
        self.make_shards(parameters)
        for parameter, shard in zip(parameters, self.shards, strict=True):
            parameter.__class__, parameter.title = Replaced, shard.title

    def title(self, index: int) -> str:
        return f"parameter '{self.names[index]}' of {self._unit_title()}"

    @torch.no_grad()
    def make_shards(self, tensors: Sequence[torch.Tensor]) -> None:
        first = tensors[0]
        self.local = first.new_zeros(self.layout.shard_numel)  # this rank's shards, end to end
        self.pieces = self.layout.pieces(self.local)
        self.shards: list[Shard] = []  # the same, as parameters
        for index, (piece, tensor) in enumerate(zip(self.pieces, tensors, strict=True)):
            shard = Shard(piece, tensor.requires_grad)
            shard.title, shard.whole_shape = partial(self.title, index), tensor.shape
            shard.part_of, shard.owner = partial(self.layout.piece, index), self._owner
            shard.comms = self.comms
            piece.copy_(shard.part_of(tensor))
            self.shards.append(shard)
        self._install(self.shards)

    def _install(self, parameters: Sequence[Parameter]) -> None:
        for parameter, places in zip(parameters, self.places, strict=True):
            for module, attribute in places:
                set_tensor(module, attribute, parameter)

    def all_gather_buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Allocate what the all-gather writes; return it, and this rank's part of it."""
        mine = self.local.to(self.param_dtype)
        self._gathered = mine.new_empty(self.layout.padded)
        return self._gathered, mine

    def use_gathered(self) -> None:
        """The all-gather is done: make the module's parameters the unsharded ones."""
        if not self.unsharded:
            kind: Any = {"dtype": self.param_dtype, "device": self.local.device}
            with torch.inference_mode(False):  # what is created there can never be trained
                empty = [torch.empty(shape, **kind) for shape in self.layout.shapes]
                self.unsharded = [Parameter(each, requires_grad=False) for each in empty]
            self._versions = tuple(parameter._version for parameter in self.unsharded)
        for parameter in self.unsharded:
            parameter.untyped_storage().resize_(parameter.nbytes)
        self.layout.unpack(self._gathered, [parameter.data for parameter in self.unsharded])
        del self._gathered
        # Private, in torch 2.11 as in 2.13; there is no public way to set a version.
        torch._C._autograd._unsafe_set_version_counter(tuple(self.unsharded), self._versions)
        for parameter, wanted in zip(self.unsharded, self.trainable, strict=True):
            parameter.requires_grad_(wanted)
        self._install(self.unsharded)

    def free(self) -> None:
        """Make the module's parameters the shards: [Note: freed, and the same again]."""
        self._install(self.shards)
        self._versions = tuple(parameter._version for parameter in self.unsharded)
        increment_version(self.unsharded)
        for parameter in self.unsharded:
            parameter.untyped_storage().resize_(0)

    @property
    def trainable(self) -> list[bool]:
        with no_torch_function():
            return [shard.requires_grad for shard in self.shards]

    def take_gradients(self) -> bool:
        """Add this backward's unsharded gradients to earlier ones; True if there are any."""
        for index, parameter in enumerate(self.unsharded):
            gradient, parameter.grad = parameter.grad, None
            if gradient is not None:
                if (before := self.gradients[index]) is not None:
                    gradient = before.to(self.reduce_dtype).add_(gradient)
                self.gradients[index] = gradient
        return any(gradient is not None for gradient in self.gradients)

    def pack_gradients(self, scale: float) -> tuple[torch.Tensor, list[bool]]:
        """Flatten the unsharded gradients, times `scale`, in the order of ranks, and drop them."""
        flat = self.local.new_empty(self.layout.padded, dtype=self.reduce_dtype)
        self.layout.pack(self.gradients, flat)
        wanted = zip(self.gradients, self.trainable, strict=True)
        present = [gradient is not None or not wants for gradient, wants in wanted]
        self.drop_gradients()
        return flat.mul_(scale), present

    def drop_gradients(self) -> None:
        self.gradients = [None] * len(self.gradients)
        for parameter in self.unsharded:
            parameter.grad = None

    def write_gradients(self, mean: torch.Tensor, wanted: Sequence[bool]) -> None:
        """Add this rank's part of the averaged gradients to `grad` of the wanted shards."""
        parts = self.layout.pieces(mean.to(self.dtype))
        written = []
        with no_torch_function():
            for shard, part, now in zip(self.shards, parts, wanted, strict=True):
                if now and shard.requires_grad:
                    if shard.grad is None:
                        shard.grad = part.as_subclass(ShardValues)
                    else:
                        shard.grad.add_(part)
                    written.append(shard)
        for shard in written:  # as autograd does with a parameter; private, and FSDP2 does the same
            for hook in (shard._post_accumulate_grad_hooks or {}).values():
                hook(shard)


def set_tensor(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    table = module._parameters if name in module._parameters else module._buffers
    if type(module).__setattr__ is nn.Module.__setattr__:
        table[name] = tensor  # type: ignore[assignment]
    else:  # an LSTM, for one, keeps a list of them
        setattr(module, name, tensor)


def own_parameters(modules: Sequence[nn.Module]) -> list[ParamInfo]:
    """The parameters that no unit inside the modules has, each with all its places."""
    found: dict[Parameter, ParamInfo] = {}
    for prefix, part in own_modules(modules):
        for name, parameter in part.named_parameters(prefix, False, remove_duplicate=False):
            info = found.setdefault(parameter, ParamInfo(name, parameter, []))
            info.places.append((part, name.rpartition(".")[2]))
    return list(found.values())


def own_modules(modules: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """The modules and their parts, without those in units inside; with names."""
    every = (part for module in modules for part in module.modules())
    units = [part for part in every if part not in modules and "_unit" in vars(part)]
    memo = {part for unit in units for part in unit.modules()}
    for place, module in enumerate(modules):
        yield from module.named_modules(memo, str(place) if len(modules) > 1 else "")
