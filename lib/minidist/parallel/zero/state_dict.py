"""Saving what the ranks keep in slices: each its own, or all the whole, in torch.optim's format.

A whole state knows nothing of ranks and parts. So it can be loaded on another number of ranks, and
by the bare optimizer in one process; and the bare optimizer's can be loaded here. What is kept of a
parameter is either a tensor of an element for each of its own, as moments are: then it is cut like
the parameter. Or it is a number, such as the count of steps: that is the same on all ranks.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.comm.comm import Comm
from minidist.parallel.zero.bucket import Part
from minidist.parallel.zero.param_groups import Group, copy_hyper, hyper
from minidist.parallel.zero.saved import SHARD, check_own, check_whole, elementwise, header

State = dict[str, Any]
Device = torch.device | str | None


class InSlices(Optimizer):
    """An optimizer whose state is `inner`'s, by the pieces that this rank owns of `parts`."""

    inner: Optimizer
    comm: Comm

    @property
    def parts(self) -> list[Part]:
        """The parameters, in the order in which they travel."""
        raise NotImplementedError

    @torch.no_grad()
    def full_state_dict(self, *, device: Device = None) -> State:
        """The whole state, as `state_dict()` of the unsharded optimizer; all ranks get it.

        Every rank must call it.

        Args:
            device: where to put it, part by part, such as "cpu"; where the parameters are if None.
        """
        state = gather(self.param_groups, self.inner, self.parts, self.comm, device)
        return {"state": state, "param_groups": numbered(self.param_groups)}

    @torch.no_grad()
    def load_full_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take this rank's part of a whole state: `full_state_dict()`'s or the bare optimizer's.

        Args:
            state_dict: alike on all ranks, saved with any number of them.

        Raises:
            TypeError, ValueError: it is no such dict, or that of another model; it names the first
                parameter that differs. Nothing is loaded then.
        """
        number_of = check_whole(state_dict, self.param_groups)
        state = {number_of[key]: kept for key, kept in state_dict["state"].items()}
        state = cut(state, numbers_in(self.param_groups), self.parts)
        self._load(state, state_dict["param_groups"])

    def state_dict(self) -> State:
        """This rank's state alone: to be loaded by this rank, among as many ranks."""
        pieces = pieces_in(self.param_groups, self.parts)
        state = self.inner.state
        kept = {number: state[piece] for number, piece in pieces.items() if piece in state}
        groups = numbered(self.param_groups)
        return {"state": kept, "param_groups": groups, SHARD: header(self.param_groups, self.parts)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load what `state_dict()` has given on this rank, among as many ranks.

        Raises:
            TypeError, ValueError: it is no such dict, or that of another rank, another number of
                ranks, other parts or another model. Nothing is loaded then.
        """
        check_own(state_dict, self.param_groups, self.parts)
        copies = {
            number: {key: _copy(value) for key, value in kept.items()}
            for number, kept in state_dict["state"].items()
        }
        self._load(copies, state_dict["param_groups"])

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Neither pickle nor copy: parts and the process group belong to this process."""
        raise TypeError(
            f"rank {dist.get_rank()}: a {type(self).__name__} cannot be copied or pickled: its "
            "parts and its process group belong to this process; take its full_state_dict()"
        )

    def _load(self, state: dict[int, State], groups: Sequence[Group]) -> None:
        """Give inner its state, by the numbers of parameters, and hyper-parameters."""
        plain = [hyper(group) for group in groups]
        numbers = numbered(self.param_groups)
        loaded = [{**new, "params": own["params"]} for new, own in zip(plain, numbers, strict=True)]
        self.inner.load_state_dict({"state": state, "param_groups": loaded})
        self.state = self.inner.state  # which is another one now
        copy_hyper(self.inner.param_groups, self.param_groups)


def numbered(groups: Sequence[Group]) -> list[Group]:
    """The groups with numbers in place of the parameters, counted through all groups."""
    found, first = [], 0
    for group in groups:
        after = first + len(group["params"])
        found.append({**group, "params": list(range(first, after))})
        first = after
    return found


def pieces_in(groups: Sequence[Group], parts: Sequence[Part]) -> dict[int, Parameter]:
    """The number of each parameter → this rank's piece of it."""
    number_of = numbers_in(groups)
    return {
        number_of[parameter]: piece
        for part in parts
        for parameter, piece in zip(part.parameters, part.pieces, strict=True)
    }


def numbers_in(groups: Sequence[Group]) -> dict[torch.Tensor, int]:
    """What number each parameter has."""
    every = chain(*(group["params"] for group in groups))
    return {parameter: number for number, parameter in enumerate(every)}


def cut(
    state: Mapping[int, State], number_of: Mapping[torch.Tensor, int], parts: Sequence[Part]
) -> dict[int, State]:
    """This rank's part of a whole state; nothing for a parameter of which it owns nothing."""
    found: dict[int, State] = {}
    kinds = elementwise(state, {number: each.shape for each, number in number_of.items()})
    for part in parts:
        ranges = part.flat.ranges()
        for parameter, (start, end) in zip(part.parameters, ranges, strict=True):
            number = number_of[parameter]
            if start == end or not state.get(number):
                continue
            found[number] = {}
            for key, value in state[number].items():
                if key in kinds and torch.is_tensor(value):
                    value = part.memory(value, parameter)[start:end]
                found[number][key] = _copy(value)
    return found


# ---- the whole state, from all ranks' slices ----


class Kind(NamedTuple):
    """What stands for a tensor that is cut like the parameter, while ranks tell what they have."""

    dtype: torch.dtype


def gather(
    groups: Sequence[Group], inner: Optimizer, parts: Sequence[Part], comm: Comm, device: Device
) -> dict[int, State]:
    """The state by the numbers of parameters, whole.

    First the ranks tell each other what they keep. Then each kind of moment of each part is
    gathered as the parameters are: one part's at a time is on its way.
    """
    number_of = numbers_in(groups)
    notes = exchange(_note(number_of, inner, parts), comm, parts[0].buffer.device)
    known: dict[int, State] = {}
    for note in notes:
        for number, kept in note.items():
            known.setdefault(number, kept)
    found = {number: dict(known[number]) for number in sorted(known)}
    for part in parts:
        wanted: dict[tuple[str, Kind], list[Parameter]] = {}
        for parameter in part.parameters:
            for key, value in known.get(number_of[parameter], {}).items():
                if isinstance(value, Kind):
                    wanted.setdefault((key, value), []).append(parameter)
        for (key, kind), parameters in wanted.items():
            flat = _gather_part(part, key, kind.dtype, inner, comm)
            for parameter in parameters:
                view = part.view(flat, parameter)
                found[number_of[parameter]][key] = view.to(device or view.device, copy=True)
    return found


def _gather_part(
    part: Part, key: str, dtype: torch.dtype, inner: Optimizer, comm: Comm
) -> torch.Tensor:
    """1-D [padded]: what all ranks keep under a key for the parameters of a part."""
    flat = torch.zeros_like(part.buffer, dtype=dtype)
    own = part.flat.shard(flat)
    for piece, place in zip(part.pieces, part.flat.pieces(own), strict=True):
        kept = inner.state[piece].get(key) if piece in inner.state else None
        if torch.is_tensor(kept) and kept.shape == place.shape:
            place.copy_(kept)
    comm.all_gather(flat, own)
    return flat


def _note(
    number_of: Mapping[torch.Tensor, int], inner: Optimizer, parts: Sequence[Part]
) -> dict[int, State]:
    """What this rank keeps for the parameters of which it owns something; no large tensors."""
    found = {}
    for part in parts:
        for parameter, piece in zip(part.parameters, part.pieces, strict=True):
            if len(piece) and piece in inner.state:
                name = part.name_of(parameter)
                found[number_of[parameter]] = {
                    key: _short(name, key, value, piece)
                    for key, value in inner.state[piece].items()
                }
    return found


def _short(name: str, key: str, value: Any, piece: Parameter) -> Any:
    if not torch.is_tensor(value):
        return value
    if not value.dim():
        return value.cpu()  # another rank's may be on another device
    if value.shape == piece.shape:
        return Kind(value.dtype)
    raise TypeError(
        f"{name}: expected '{key}' in the optimizer's state to be a number or to have an element "
        f"for each of the piece's {len(piece)}, got shape {tuple(value.shape)}"
    )


def _copy(value: Any) -> Any:
    return value.clone() if torch.is_tensor(value) else value


def exchange(note: object, comm: Comm, device: torch.device) -> list[Any]:
    """Every rank's note, of any size."""
    mine = torch.frombuffer(bytearray(pickle.dumps(note)), dtype=torch.uint8).to(device)
    lengths = torch.zeros(comm.ranks, dtype=torch.int64, device=device)
    comm.all_gather(lengths, torch.tensor([len(mine)], device=device))
    room = torch.zeros(int(lengths.max()), dtype=torch.uint8, device=device)
    room[: len(mine)] = mine
    board = room.new_zeros(comm.ranks * len(room))
    comm.all_gather(board, room)
    rows = board.view(comm.ranks, -1).cpu()
    return [
        pickle.loads(row[:length].numpy().tobytes())
        for row, length in zip(rows, lengths.tolist(), strict=True)
    ]
