"""A model in full, whatever wraps it: its state and its gradients under the bare module's names.

[Note: one state for all] The state of a bare module is what any wrapper gives and takes: so what
was saved on four ranks loads on three, or into one process, wrapped otherwise or not at all. FSDP's
shards are gathered for it a block of a unit at a time.

[Note: who has the whole] By default every rank does, since comparing and testing want that. A model
that fits no rank goes to the memory of rank 0's host: `device="cpu", rank0_only=True`; the others
have one block at a time. To load it every rank reads the file, but of that only what it keeps:
`torch.load(path, mmap=True)`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minidist.collectives.checks.tensors import wire_device
from minidist.comm.comm import Comm
from minidist.parallel.ddp.wrapper import PREFIX
from minidist.parallel.fsdp.fully_shard import LABEL
from minidist.parallel.fsdp.shard import Shard
from minidist.parallel.full_model.shards import (
    bare,
    blocks,
    comms,
    sharded_parameters,
    sliced_gradients,
    whoami,
)
from minidist.parallel.sharding.layouts import Layout

ROOM = 512  # bytes for what is wrong on a rank


@torch.no_grad()
def full_state_dict(
    module: nn.Module, *, rank0_only: bool = False, device: torch.device | str | None = None
) -> dict[str, Any]:
    """The state dict that the bare module would have, of whole tensors.

    Every rank must call it. It is a copy: training goes on without changing it.

    Args:
        module: bare, or wrapped in DDP (minidist's or torch's), or with units of `fully_shard`;
            a ZeroOptimizer may hold its parameters.
        rank0_only: all but the first rank get {}; see [Note: who has the whole].
        device: where the tensors go, such as "cpu"; where they are if None.

    Returns:
        name → parameter or persistent buffer; tied ones under each of their names, in the dtype of
        the shards. `module.load_state_dict` of the bare module takes it.

    Raises:
        ValueError: `module` is a part of a unit.
    """
    inner = bare(module)
    keep = not rank0_only or _is_first(comms(module))
    copies: dict[torch.Tensor, torch.Tensor] = {}
    for block in sharded_parameters(inner):
        wholes = block.gather(block.kept)
        if keep:
            copies |= {
                shard: whole.to(device or whole.device, copy=True)
                for shard, whole in zip(block.named, wholes, strict=True)
            }
        del wholes
    state: dict[str, Any] = inner.state_dict(keep_vars=True)
    if not keep:
        return {}
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            if value not in copies:
                copies[value] = value.detach().to(device or value.device, copy=True)
            state[name] = copies[value]
    for metadata in state._metadata.values():  # type: ignore[attr-defined]
        metadata.pop(LABEL, None)
    return state


@torch.no_grad()
def load_full_state_dict(module: nn.Module, state_dict: Mapping[str, Any]) -> None:
    """Give the module a state that `full_state_dict` or a bare module's `state_dict` made.

    Every rank must call it, with the same state: each takes its own part. The number of ranks and
    the wrapper may be others than when it was made. Unless all fits on all ranks, nothing changes.

    Args:
        module: as for `full_state_dict`.
        state_dict: name → whole tensor, on any device, of a dtype that converts to the module's:
            not a real number to a whole one, nor a complex to a real. Names may also begin with
            "module.", as PyTorch's DDP saves them.

    Raises:
        ValueError: on every rank, naming the first that something is wrong on, and there the first
            name that is missing, too many, or of another shape or dtype, expected and got.
    """
    inner = bare(module)
    place: dict[torch.Tensor, tuple[Layout, int]] = {}
    for _, block in blocks(inner):
        place |= {shard: (block.layout, index) for index, shard in enumerate(block.shards)}
    own = inner.state_dict(keep_vars=True)
    mine = OrderedDict(
        (name if name in own else name.removeprefix(PREFIX), value)
        for name, value in state_dict.items()
    )
    if problem := _first_problem(_misfits(own, mine), comms(module)):
        raise ValueError(problem)
    for name, value in own.items():
        if isinstance(value, Shard):
            layout, index = place[value]
            mine[name] = layout.piece(index, mine[name])
    mine._metadata = _labelled(own, state_dict)  # type: ignore[attr-defined]
    inner.load_state_dict(mine)


@torch.no_grad()
def full_gradients(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The whole averaged gradient of each parameter, under the bare module's names.

    Every rank must call it, after backward. Gradients that no rank has averaged yet, of DDP's or
    FSDP's local accumulation, are left out or this rank's own; a ZeroOptimizer with local gradients
    averages them now, as its `step()` would.

    Args:
        module: as for `full_state_dict`.

    Returns:
        name → a copy of the gradient, or None where there is none; a tied parameter once, as in
        `named_parameters()`.
    """
    inner = bare(module)
    found: dict[torch.Tensor, torch.Tensor | None] = {}
    for part in sliced_gradients(inner):
        used = part.used()
        found |= dict.fromkeys(part.named)
        if any(used):
            wholes = part.gather([kept.grad for kept in part.kept])
            for parameter, whole, there in zip(part.named, wholes, used, strict=True):
                found[parameter] = whole.clone() if there else None
    for parameter in inner.parameters():
        if parameter not in found:
            found[parameter] = None if parameter.grad is None else parameter.grad.detach().clone()
    return {name: found[parameter] for name, parameter in inner.named_parameters()}


def _is_first(everywhere: Sequence[Comm]) -> bool:
    """Whether this is rank 0 of those between whom a model is shared, or else of all."""
    if everywhere or not whoami():
        return all(comm.rank == 0 for comm in everywhere)
    return dist.get_rank() == 0


# ---- whether a state fits ----


def _misfits(own: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """What is wrong with a state, name by name: those of the module first, in its order."""
    found = []
    for name, mine in own.items():
        if isinstance(mine, torch.Tensor) and mine.is_meta:
            found.append(f"'{name}': is on the meta device; call minidist.materialize before")
        elif name not in state:
            found.append(f"'{name}': expected {_like(mine)}, got nothing")
        elif isinstance(mine, torch.Tensor) and (got := _misfit(mine, state[name])):
            found.append(f"'{name}': expected {_like(mine)}, got {got}")
    found += (f"'{name}': expected nothing, got it" for name in state if name not in own)
    return found


def _misfit(mine: torch.Tensor, given: object) -> str:
    """What is given instead of what fits; "" if it does."""
    if not isinstance(given, torch.Tensor):
        return f"a {type(given).__name__}"
    if given.is_meta:
        return f"{_like(given)} on the meta device, without values"
    fits = given.shape == _shape(mine) and torch.can_cast(given.dtype, mine.dtype)
    return "" if fits else _like(given)


def _like(value: object) -> str:
    if not isinstance(value, torch.Tensor):
        return "what set_extra_state takes"
    return f"{tuple(_shape(value))} {str(value.dtype).removeprefix('torch.')}"


def _shape(tensor: torch.Tensor) -> torch.Size:
    return tensor.whole_shape if isinstance(tensor, Shard) else tensor.shape


def _first_problem(misfits: list[str], everywhere: Iterable[Comm]) -> str:
    """What to say of the first rank on which something is wrong, the same on all; "" if nothing."""
    said = ""
    if misfits:
        more = f" (the first of {len(misfits)} wrong names)" if len(misfits) > 1 else ""
        said = f"{whoami()}load_full_state_dict: {misfits[0]}{more}"
    for comm in everywhere:
        text = said.encode()[:ROOM]
        mine = torch.zeros(ROOM, dtype=torch.uint8)
        mine[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8) if text else 0
        wire = mine.to(wire_device(comm.group))
        board = wire.new_empty(comm.ranks * ROOM)
        comm.all_gather(board, wire)
        rows = board.view(comm.ranks, ROOM).cpu().numpy()
        told = [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in rows]
        said = next(filter(None, told), "")
    return said


def _labelled(own: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The versions of modules that come with the state, and the labels of this rank's shards."""
    given: dict[str, dict[str, Any]] = getattr(state, "_metadata", {})
    mine: dict[str, dict[str, Any]] = own._metadata  # type: ignore[attr-defined]
    return {
        name: given.get(name, {}) | {LABEL: each[LABEL]} if LABEL in each else given.get(name, {})
        for name, each in mine.items()
    }
