"""Tensors of every layout, and sub-groups: results in place, neighbours in memory untouched."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

import minidist
from benchmarks.checks.collectives import CALLS, Tensors, Variant
from minidist import ReduceOp, launch
from minidist.collectives.checks.tensors import check_apart
from tests.support.collectives import all_reduced, data, reduced, same

MARK = -77  # in the memory around a tensor; what a collective must never write to
Layout = Callable[[torch.Tensor], torch.Tensor]  # from memory full of MARK, a view


def memory(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, MARK, dtype=dtype)


LAYOUTS: dict[str, tuple[torch.Tensor, Layout]] = {
    "contiguous": (memory(12), lambda base: base.view(3, 4)),
    "transposed": (memory(5, 4), lambda base: base.t()),
    "every second": (memory(11), lambda base: base[1::2]),
    "block of a matrix": (memory(6, 8), lambda base: base[1:5:2, ::3]),
    "middle of a vector": (memory(20), lambda base: base[5:13]),
    "one number": (memory(5), lambda base: base[2]),
    "one number, no neighbours": (memory(), lambda base: base),
    "odd strides of size 1": (memory(9), lambda base: base.as_strided((3, 1), (2, 7), 1)),
    "rows and columns with gaps": (memory(23), lambda base: base.as_strided((2, 3), (12, 5))),
    "empty": (memory(3, 4), lambda base: base[:, 2:2]),
    "empty, expanded": (memory(1, 0), lambda base: base.expand(5, 0)),
    "channels last": (
        memory(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda base: base[:, 1:],
    ),
    "conjugate": (memory(7, dtype=torch.complex64), lambda base: base[2:6].conj()),
    "negative": (memory(6, dtype=torch.complex64), lambda base: base.conj().imag),
}


def outside_untouched(base: torch.Tensor, view_of: Layout) -> bool:
    """Whether MARK is everywhere but in the view. Ends with MARK in the view as well."""
    view_of(base).copy_(view_of(memory(*base.shape, dtype=base.dtype)))
    return torch.equal(base, memory(*base.shape, dtype=base.dtype))


class InLayout(Tensors):
    """The tensors of one call; those of one part lie in the layout."""

    def __init__(self, base: torch.Tensor, view_of: Layout) -> None:
        like = view_of(base)
        super().__init__(Variant(like.numel(), like.dtype, False, False))
        self.base, self.view_of = base, view_of
        self.bases: list[torch.Tensor] = []

    def put(self, start: torch.Tensor, want: torch.Tensor | None = None) -> torch.Tensor:
        """The tensor to pass: holds `start`, and must hold `want` after; None: still `start`."""
        tensor = self.view_of(base := self.base.clone())
        if start.numel() == tensor.numel():
            self.bases.append(base)
        else:
            tensor = torch.empty_like(start)
        tensor.copy_(start.reshape(tensor.shape))
        self._wanted.append((tensor, (start if want is None else want).reshape(tensor.shape)))
        return tensor

    def right(self) -> bool:
        """Whether all tensors hold what they must, and what lies around them is as it was."""
        return super().right() and all(outside_untouched(each, self.view_of) for each in self.bases)


def in_layout(name: str, base: torch.Tensor, view_of: Layout) -> list[str]:
    """One layout as every tensor of each collective, alone and in lists; what went wrong."""
    wrong = []
    for algorithm in ("ring", "tree", "naive", "shared_memory", "of reduce"):
        tensors = InLayout(base, view_of)
        mine, sums = tensors.part(tensors.rank), tensors.reduced(tensors.numel)
        if algorithm == "of reduce":
            at_root = tensors.rank == tensors.root
            minidist.reduce(tensors.put(mine, sums if at_root else mine), tensors.root)
        else:
            minidist.all_reduce(tensors.put(mine, sums), algorithm=algorithm)
        wrong += [] if tensors.right() else [f"all_reduce {algorithm}, {name}"]
    for call, arguments in CALLS.items():
        if call not in ("all_reduce", "reduce", "all_to_all_single"):  # of other sizes; see below
            given = arguments(tensors := InLayout(base, view_of))
            getattr(minidist, call)(*given)
            wrong += [] if tensors.right() else [f"{call}, {name}: {given}"]
    return wrong


def laid_out_otherwise() -> list[str]:
    """What differs between ranks, and what is only read."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    shape, wrong = (2, 3, 4, 5), []
    layouts: list[torch.Tensor] = [  # the same numbers: elements must match by index
        torch.empty(shape),
        torch.empty(shape).to(memory_format=torch.channels_last),
        torch.empty(5, 4, 3, 2).permute(3, 2, 1, 0),
    ]
    tensor = layouts[rank].copy_(data(rank, shape))
    minidist.all_reduce(tensor)
    wrong += [] if same(tensor, all_reduced(ranks, shape)) else ["all_reduce"]
    square = memory(3 * ranks, 5).t()
    minidist.all_gather_into_tensor(square, data(rank, (3, 5)), check=False)
    want = torch.cat([data(r, 15) for r in range(ranks)]).view(5, 3 * ranks)
    wrong += [] if same(square, want) else ["all_gather to a transposed tensor"]
    inputs = {
        "transposed": lambda r: data(r, (3, 2 * ranks)).t(),
        "expanded": lambda r: data(r, 3).expand(2 * ranks, 3),
        "overlapping": lambda r: data(r, 20).as_strided((2 * ranks, 3), (1, 1)),
        "conjugate": lambda r: data(r, 6 * ranks, torch.complex64).conj(),
    }
    for name, make in inputs.items():
        whole, kept = make(rank), make(rank)
        output = torch.empty(6, dtype=whole.dtype)
        minidist.reduce_scatter_tensor(output, whole, check=False)
        want = reduced([make(r).resolve_conj().flatten() for r in range(ranks)])
        wrong += [] if same(output, want.tensor_split(ranks)[rank]) else [f"reduce_scatter {name}"]
        wrong += [] if same(whole, kept) else [f"reduce_scatter changed {name}"]
    return wrong


def addresses(tensor: torch.Tensor) -> set[int]:
    """Of every element, one by one."""
    offsets = torch.arange(tensor.untyped_storage().nbytes() // tensor.element_size())
    seen = offsets.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return set(seen.flatten().tolist())


def views(dice: random.Random) -> list[torch.Tensor]:
    """A few small views of one piece of memory, of up to two dimensions."""
    memory, found = torch.zeros(60), []
    for _ in range(3):
        shape = [dice.choice((0, 2, 3, 3, 4)) for _ in range(dice.randint(0, 2))]
        strides = [dice.choice((1, 2, 4, 6, 8)) for _ in shape]
        found.append(memory.as_strided(shape, strides, dice.randint(0, 5)))
    return found


def test_what_shares_memory_is_always_found_and_neighbours_are_let_pass() -> None:
    shared, apart = 0, 0
    for seed in range(800):
        one, other, third = views(random.Random(seed))
        meet = bool(addresses(one) & (addresses(other) | addresses(third)))
        found = False
        try:
            check_apart({"one": one}, {"other": other, "third": third})
        except ValueError as error:
            found = "one" in str(error)
        assert found or not meet, seed
        shared += meet
        apart += not found and one.numel() * other.numel() > 4
    assert min(shared, apart) > 20, "both kinds must be among them"
    rows = torch.zeros(4, 5)
    check_apart({}, {"one": rows, "other": rows[1]})  # only what is written must be apart
    check_apart({f"row {i}": row for i, row in enumerate(rows)}, {})
    with pytest.raises(ValueError, match="row 0 and column 1 share memory; pass a clone"):
        check_apart({"row 0": rows[0]}, {"column 1": rows[:, 1]})


def in_place_and_gradients() -> list[str]:
    """A rank's own part, as FSDP has it; tensors of inference mode; what is only read."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    wrong = []
    whole = data(rank, 4 * ranks)
    minidist.reduce_scatter_tensor(whole.view(ranks, 4)[rank], whole)
    want = data(rank, 4 * ranks)
    want.view(ranks, 4)[rank] = all_reduced(ranks, 4 * ranks).view(ranks, 4)[rank]
    wrong += [] if same(whole, want) else ["reduce_scatter"]
    whole = memory(ranks, 4)
    whole[rank] = data(rank, 4)
    minidist.all_gather_into_tensor(whole, whole[rank])
    wrong += [] if same(whole, torch.stack([data(r, 4) for r in range(ranks)])) else ["all_gather"]
    with torch.inference_mode():
        made_in_inference = data(rank, 6)
    minidist.all_reduce(made_in_inference)
    wrong += [] if same(made_in_inference, all_reduced(ranks, 6)) else ["inference tensor"]
    weight = data(rank, 6).requires_grad_()
    output = torch.empty(6 // ranks)
    minidist.reduce_scatter_tensor(output, weight)  # only read, so it may require grad
    wrong += [] if same(output, all_reduced(ranks, 6).tensor_split(ranks)[rank]) else ["input"]
    minidist.all_reduce(weight.data)
    wrong += [] if same(weight.detach(), all_reduced(ranks, 6)) else ["data of a parameter"]
    (weight * 3).sum().backward()  # it is left in no state that autograd refuses
    right = weight.grad is not None and same(weight.grad, torch.full((6,), 3.0))
    return wrong if right else [*wrong, "gradient"]


def only_read_and_in_place() -> list[str]:
    """What is only read may require grad, or be expanded. Own part and tensor may be the same."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    at, parts = ranks // 2, [data(r, 3) for r in range(ranks)]
    root, wrong = rank == at, []
    weight = data(rank, 3).requires_grad_(root)
    minidist.broadcast(weight, at)
    wrong += [] if same(weight.detach(), parts[at]) else ["broadcast of a weight"]
    spread = data(rank, 1).expand(4) if root else torch.empty(4)
    minidist.broadcast(spread, at)
    wrong += [] if same(spread, data(at, 1).expand(4)) else ["broadcast of an expanded tensor"]
    weight = data(rank, 3).requires_grad_(not root)
    minidist.reduce(weight, at)
    want = reduced(parts) if root else data(rank, 3)
    wrong += [] if same(weight.detach(), want) else ["reduce of a weight"]
    slots = [torch.zeros(3) for _ in range(ranks)]
    slots[at].copy_(data(rank, 3))
    minidist.gather(slots[at], slots if root else None, at)
    wrong += [] if not root or all(map(same, slots, parts)) else [f"gather in place: {slots}"]
    given = [data(20 + r, 3) for r in range(ranks)]
    tensor = given[at] if root else torch.empty(3)
    minidist.scatter(tensor, given if root else None, at)
    wrong += [] if same(tensor, data(20 + rank, 3)) else ["scatter in place"]
    whole = torch.zeros(ranks, 3)
    whole[rank] = data(rank, 3)
    minidist.all_gather(list(whole), whole[rank])
    wrong += [] if same(whole, torch.stack(parts)) else ["all_gather"]
    rows = [data(100 * rank + d, 4) for d in range(ranks)]
    minidist.reduce_scatter(rows[rank], rows)
    want = reduced([data(100 * r + rank, 4) for r in range(ranks)])
    return wrong if same(rows[rank], want) else [*wrong, "reduce_scatter"]


def every_layout() -> list[str]:
    wrong = [each for name, layout in LAYOUTS.items() for each in in_layout(name, *layout)]
    return wrong + laid_out_otherwise() + in_place_and_gradients() + only_read_and_in_place()


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_collective_in_every_layout_in_place_and_with_autograd(ranks: int) -> None:
    assert launch(every_layout, ranks) == [[]] * ranks


class Watched(TorchDispatchMode):
    """Strided outputs of a call, as GPU tensors over Gloo are staged: which of them are read."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        super().__init__()
        self.known = {each.untyped_storage().data_ptr() for each in outputs}
        self.read = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.copy_.default:
            self.read += args[1].untyped_storage().data_ptr() in self.known
        return func(*args, **(kwargs or {}))


class Outputs(Tensors):
    """The tensors of one call that are only written, by `blank`."""

    def __init__(self) -> None:
        super().__init__(Variant(8, torch.float32, True, False))
        self.outputs: list[torch.Tensor] = []

    def blank(self, want: torch.Tensor) -> torch.Tensor:
        self.outputs.append(super().blank(want))
        return self.outputs[-1]


def outputs_read() -> tuple[list[str], int]:
    """The calls that read what they only write; and the outputs of all."""
    found, outputs = [], 0
    for name, arguments in CALLS.items():
        given = arguments(tensors := Outputs())
        if name == "broadcast" and tensors.rank != tensors.root:
            tensors.outputs.append(given[0])
        with Watched(tensors.outputs) as watched:
            getattr(minidist, name)(*given)
        found += [name] if watched.read or not tensors.right() else []
        outputs += len(tensors.outputs)
    return found, outputs


def test_what_is_only_written_is_not_copied_first() -> None:
    for rank, (found, outputs) in enumerate(launch(outputs_read, 3)):
        assert found == []
        assert outputs > 10, rank


def lazily_conjugated_and_bools() -> list[bool]:
    def of(rank: int) -> torch.Tensor:
        return torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)

    mine, found = dist.get_rank(), []
    views: list[Any] = [torch.conj, lambda tensor: tensor.conj().imag]
    for view in views:
        summed, sent = view(of(mine)), view(of(mine))
        minidist.all_reduce(summed)
        minidist.broadcast(sent, 1)
        found += [torch.equal(summed, view(of(0) + of(1))), torch.equal(sent, view(of(1)))]
    flags = torch.tensor([[True, False, True], [True, False, False]])
    for op, right in ((ReduceOp.SUM, flags.any(0)), (ReduceOp.MIN, flags.all(0))):
        both = flags[mine].clone()
        minidist.all_reduce(both, op)
        found.append(torch.equal(both, right))
    return found


def test_conjugate_views_and_bools_are_reduced_as_what_they_mean() -> None:
    assert launch(lazily_conjugated_and_bools, 2) == [[True] * 6] * 2
