"""Calls that are wrong on one rank, and what a collective must say of them."""

from collections.abc import Callable
from typing import NamedTuple

import torch

import minidist
from minidist import ReduceOp
from minidist.collectives.tuner import CHOSEN
from minidist.schedule.algorithms import ALL_REDUCE

RANKS = 4
BAD = 2  # the rank that is called wrongly; the others are not
Call = Callable[[bool], object]  # given whether this rank is the bad one


class Case(NamedTuple):
    """`error`: what the bad rank raises. The others raise MismatchError and say the same of it."""

    call: Call
    error: type[Exception]
    said: str  # after the names of rank and collective
    name: str = "all_reduce"


def all_reduce(**wrong: object) -> Call:
    """The call with these arguments wrong on the bad rank. `make`: makes the tensor there."""

    def call(bad: bool) -> object:
        options = dict(wrong) if bad else {}
        make = options.pop("make", lambda: torch.ones(2, 3))
        return minidist.all_reduce(make(), **options)

    return call


def tensor(make: Callable[[], object]) -> Call:
    return all_reduce(make=make)


def on_all(make: Callable[[], torch.Tensor], op: ReduceOp) -> Call:
    """Wrong on the bad rank alone, and the others have this dtype too."""
    return lambda bad: minidist.all_reduce(make(), op if bad else ReduceOp.SUM)


def scatter(output: Callable[[], torch.Tensor], **more: Callable[[], torch.Tensor]) -> Call:
    def call(bad: bool) -> object:
        whole = more.get("whole", lambda: torch.ones(RANKS * 3))
        pick = (output(), whole()) if bad else (torch.ones(3), torch.ones(RANKS * 3))
        return minidist.reduce_scatter_tensor(*pick)

    return call


def gather(
    output: Callable[[], object], part: Callable[[], object] = lambda: torch.ones(3)
) -> Call:
    def call(bad: bool) -> object:
        pick = (output(), part()) if bad else (torch.ones(RANKS * 3), torch.ones(3))
        return minidist.all_gather_into_tensor(*pick)

    return call


def leaf() -> torch.Tensor:
    return torch.ones(2, 3, requires_grad=True)


def others(argument: str, odd: str, rest: str) -> str:
    return f"the ranks disagree on {argument}: rank 2 passed {odd}; ranks 0, 1, 3 passed {rest}"


def another_collective(bad: bool) -> object:
    if bad:
        return minidist.all_gather_into_tensor(torch.ones(RANKS), torch.ones(1))
    return minidist.all_reduce(torch.ones(2, 3))


STRANGE = '\0"\\é\n' * 500  # what escapes to many times its length
ONES = (1,) * 60  # as text longer than what is sent of one argument
WHOLE = torch.ones(RANKS * 3)
GRAD = "requires grad, but is written in place; pass tensor.detach()"
SHARED = "has elements that share memory, so it cannot be written; pass a clone()"
PARTS = "elements are not 4 parts of"
NO_OP = "op must be one of SUM, AVG, PRODUCT, MIN, MAX, got "
NAMES = f"algorithm must be one of {', '.join([*ALL_REDUCE, *CHOSEN, 'native'])}, got "
NOT_DENSE = "tensor: expected a dense tensor, got layout torch.sparse_"

OWN = (
    {
        "op of another kind": Case(all_reduce(op=torch.ones(2)), ValueError, f"{NO_OP}tensor("),
        "band": Case(all_reduce(op=ReduceOp.BAND), ValueError, f"{NO_OP}<RedOpType.BAND"),
        "op is a string": Case(all_reduce(op="SUM"), ValueError, f"{NO_OP}'SUM'"),
        "op is None": Case(all_reduce(op=None), ValueError, f"{NO_OP}None"),
        "unknown algorithm": Case(all_reduce(algorithm="rnig"), ValueError, f"{NAMES}'rnig'"),
        "algorithm is a list": Case(all_reduce(algorithm=["ring"]), ValueError, f"{NAMES}['ring']"),
        "strange algorithm": Case(all_reduce(algorithm=STRANGE), ValueError, NAMES),
        "leaf": Case(tensor(leaf), ValueError, f"tensor: {GRAD}"),
        "not a leaf": Case(tensor(lambda: leaf() * 2), ValueError, f"tensor: {GRAD}"),
        "coo": Case(tensor(lambda: torch.ones(2, 3).to_sparse()), TypeError, f"{NOT_DENSE}coo"),
        "csr": Case(tensor(lambda: torch.ones(2, 3).to_sparse_csr()), TypeError, f"{NOT_DENSE}csr"),
        "nested": Case(
            tensor(lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])),
            TypeError,
            "tensor: expected a plain dense tensor, got a nested one",
        ),
        "expanded": Case(
            tensor(lambda: torch.ones(3).expand(2, 3)), ValueError, f"tensor: {SHARED}"
        ),
        "overlapping": Case(
            tensor(lambda: torch.ones(9).as_strided((2, 3), (2, 1))),
            ValueError,
            f"tensor: {SHARED}",
        ),
        "no tensor": Case(
            tensor(lambda: [1.0, 2.0]), TypeError, "tensor: expected a torch.Tensor, got a list"
        ),
        "meta": Case(
            tensor(lambda: torch.ones(2, 3, device="meta")),
            ValueError,
            "tensor: is on meta, but the group moves tensors on cpu",
        ),
        "complex max": Case(
            on_all(lambda: torch.ones(2, dtype=torch.complex64), ReduceOp.MAX),
            TypeError,
            "op MAX has no meaning for torch.complex64",
        ),
        "complex min": Case(
            on_all(lambda: torch.ones(2, dtype=torch.complex128), ReduceOp.MIN),
            TypeError,
            "op MIN has no meaning for torch.complex128",
        ),
        "bool average": Case(
            on_all(lambda: torch.ones(2, dtype=torch.bool), ReduceOp.AVG),
            TypeError,
            "op AVG has no meaning for torch.bool",
        ),
    }
    | {
        f"scatter, {name}": Case(call, error, said, "reduce_scatter_tensor")
        for name, call, error, said in [
            ("size", scatter(lambda: torch.ones(4)), ValueError, f"input and output: 12 {PARTS} 4"),
            (
                "dtype",
                scatter(lambda: torch.ones(3).double()),
                TypeError,
                "input and output: dtypes differ: torch.float32 for the whole, torch.float64 for",
            ),
            (
                "grad",
                scatter(lambda: torch.ones(3, requires_grad=True)),
                ValueError,
                f"output: {GRAD}",
            ),
            ("shared", scatter(lambda: torch.ones(1).expand(3)), ValueError, f"output: {SHARED}"),
            (
                "sparse",
                scatter(lambda: torch.ones(3), whole=lambda: WHOLE.to_sparse()),
                TypeError,
                "input: expected a dense tensor, got layout torch.sparse_coo",
            ),
        ]
    }
    | {
        f"gather, {name}": Case(call, error, said, "all_gather_into_tensor")
        for name, call, error, said in [
            (
                "size",
                gather(lambda: torch.ones(11)),
                ValueError,
                f"output_tensor and input_tensor: 11 {PARTS} 3",
            ),
            (
                "dtype",
                gather(lambda: WHOLE.bool()),
                TypeError,
                "output_tensor and input_tensor: dtypes differ: torch.bool for the whole",
            ),
            (
                "grad",
                gather(lambda: WHOLE.clone().requires_grad_()),
                ValueError,
                f"output_tensor: {GRAD}",
            ),
            (
                "a list",
                gather(lambda: [torch.ones(3)] * 4),
                TypeError,
                "output_tensor: expected a torch.Tensor, got a list",
            ),
            (
                "meta",
                gather(lambda: WHOLE, lambda: torch.ones(3, device="meta")),
                ValueError,
                "input_tensor: is on meta",
            ),
        ]
    }
)

DISAGREE = {
    "shapes": (tensor(lambda: torch.ones(3, 2)), others("tensor's shape", "(3, 2)", "(2, 3)")),
    "dtypes": (
        tensor(lambda: torch.ones(2, 3).double()),
        others("tensor's dtype", "torch.float64", "torch.float32"),
    ),
    "ops": (all_reduce(op=ReduceOp.MAX), others("op", "MAX", "SUM")),
    "algorithms": (all_reduce(algorithm="tree"), others("algorithm", "tree", "ring")),
    "native on one": (all_reduce(algorithm="native"), others("algorithm", "native", "ring")),
    "another collective": (
        another_collective,
        others("the call", "all_gather_into_tensor", "all_reduce"),
    ),
    "long shapes": (
        lambda bad: minidist.all_reduce(torch.ones(*ONES, 2 if bad else 3)),
        "the ranks disagree on tensor's shape: rank 2 passed (1, 1",
    ),
    "sizes of parts": (
        gather(lambda: torch.ones(RANKS * 5), lambda: torch.ones(5)),
        others("output_tensor's shape", "(20,)", "(12,)"),
    ),
}
