"""Calls that are wrong on one rank, and what a collective must say of them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

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
    name: str


def three() -> torch.Tensor:
    return torch.ones(3)


def whole() -> torch.Tensor:
    return torch.ones(RANKS * 3)


def ones(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size) for size in sizes]


def slots() -> list[torch.Tensor]:
    return ones(3, 3, 3, 3)


def rows() -> torch.Tensor:
    return torch.ones(RANKS, 2)


def if_bad(make: Callable[[], object]) -> Callable[[], object]:
    """What only the root passes, which is the bad rank."""
    return lambda: make() if dist.get_rank() == BAD else None


RIGHT: dict[str, dict[str, Any]] = {  # what the other ranks pass; functions make new tensors
    "all_reduce": {"tensor": lambda: torch.ones(2, 3)},
    "reduce_scatter_tensor": {"output": three, "input": whole},
    "all_gather_into_tensor": {"output_tensor": whole, "input_tensor": three},
    "broadcast": {"tensor": three},
    "reduce": {"tensor": three},
    "gather": {"tensor": three, "gather_list": if_bad(slots), "dst": BAD},
    "scatter": {"tensor": three, "scatter_list": if_bad(slots), "src": BAD},
    "all_gather": {"tensor_list": slots, "tensor": three},
    "reduce_scatter": {"output": three, "input_list": slots},
    "all_to_all": {"output_tensor_list": slots, "input_tensor_list": slots},
    "all_to_all_single": {"output": rows, "input": rows},
    "ring_shift": {"tensor": three},
    "barrier": {},
}


def call(name: str, wrong: object, right: dict[str, Any] | None = None) -> Call:
    """The call with these arguments wrong on the bad rank; with `right` ones changed on all."""

    def one(bad: bool) -> object:
        changes = wrong() if isinstance(wrong, FunctionType) and bad else wrong
        arguments = RIGHT[name] | (right or {}) | (dict(changes) if bad else {})
        made = {k: v() if isinstance(v, FunctionType) else v for k, v in arguments.items()}
        return getattr(minidist, name)(**made)

    return one


# ---- wrong arguments ----


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(2, 3)


def dtensor() -> DTensor:
    mesh = DeviceMesh("cpu", [dist.get_rank()], _init_backend=False)
    return DTensor.from_local(torch.ones(2, 3), mesh, run_check=False)


def of(dtype: torch.dtype) -> dict[str, Any]:
    return {"tensor": lambda: torch.ones(2, dtype=dtype)}


def twice() -> list[torch.Tensor]:
    """A list whose first two tensors share an element."""
    both = torch.ones(5)
    return [both[:3], both[2:], *ones(3, 3)]


def own_slot_shifted() -> dict[str, Any]:
    tensor = torch.ones(4)
    return {"tensor": tensor[:3], "gather_list": [tensor[1:], *ones(3, 3, 3)]}


def part_shifted(part: str, every: str) -> Callable[[], dict[str, Any]]:
    """A part that is not the rank's own slot of the whole, but lies in it."""

    def make() -> dict[str, Any]:
        memory = whole()
        return {part: memory[1:4], every: memory}

    return make


def neighbours() -> dict[str, Any]:
    both = torch.ones(RANKS, 5)
    outputs, inputs = both[:, :3].unbind(), both[:, 2:].unbind()
    return {"output_tensor_list": list(outputs), "input_tensor_list": list(inputs)}


def in_place() -> dict[str, Any]:
    return {"output": (memory := rows()), "input": memory}


STRANGE = '\0"\\é\n' * 500  # what escapes to many times its length
EVERYBODY = list(range(RANKS))
GRAD = "requires grad, but is written in place; pass tensor.detach()"
SHARED = "has elements that share memory, so it cannot be written; pass a clone()"
PARTS = "elements are not 4 parts of"
PAIRS = "share memory; pass a clone() of one of them"
NO_OP = "op must be one of SUM, AVG, PRODUCT, MIN, MAX, got "
NAMES = f"algorithm must be one of {', '.join([*ALL_REDUCE, *CHOSEN, 'native'])}, got "
LENGTH = f"expected a list of {RANKS} tensors, one for each rank, got"
ROOTS = f"must be one of the group's ranks {EVERYBODY}, got"

VALUES: list[tuple[str, object, str]] = [  # ValueError: collective, what is wrong, what is said
    ("all_reduce", {"op": torch.ones(2)}, f"{NO_OP}tensor("),
    ("all_reduce", {"op": ReduceOp.BAND}, f"{NO_OP}<RedOpType.BAND"),
    ("all_reduce", {"op": "SUM"}, f"{NO_OP}'SUM'"),
    ("all_reduce", {"op": None}, f"{NO_OP}None"),
    ("all_reduce", {"algorithm": "rnig"}, f"{NAMES}'rnig'"),
    ("all_reduce", {"algorithm": ["ring"]}, f"{NAMES}['ring']"),
    ("all_reduce", {"algorithm": 2.5}, f"{NAMES}2.5"),
    ("all_reduce", {"algorithm": STRANGE}, NAMES),
    ("all_reduce", {"tensor": leaf}, f"tensor: {GRAD}"),
    ("all_reduce", {"tensor": lambda: leaf() * 2}, f"tensor: {GRAD}"),
    ("all_reduce", {"tensor": lambda: three().expand(2, 3)}, f"tensor: {SHARED}"),
    ("all_reduce", {"tensor": lambda: torch.ones(9).as_strided((2, 3), (2, 1))}, SHARED),
    (
        "all_reduce",
        {"tensor": lambda: torch.ones(2, 3, device="meta")},
        "tensor: is on meta, but the group moves tensors on cpu",
    ),
    (
        "all_reduce",
        {"algorithm": "hierarchical", "local_ranks": 3},
        "local_ranks: 4 ranks cannot be split into nodes of 3",
    ),
    (
        "all_reduce",
        {"algorithm": "hierarchical", "local_ranks": 0},
        "local_ranks: 4 ranks cannot be split into nodes of 0",
    ),
    ("reduce_scatter_tensor", {"output": lambda: torch.ones(4)}, f"input and output: 12 {PARTS} 4"),
    ("reduce_scatter_tensor", {"output": leaf}, f"output: {GRAD}"),
    ("reduce_scatter_tensor", {"output": lambda: torch.ones(1).expand(3)}, f"output: {SHARED}"),
    ("reduce_scatter_tensor", part_shifted("output", "input"), f"input and output {PAIRS}"),
    (
        "all_gather_into_tensor",
        {"output_tensor": lambda: torch.ones(11)},
        f"output_tensor and input_tensor: 11 {PARTS} 3",
    ),
    ("all_gather_into_tensor", {"output_tensor": lambda: whole().requires_grad_()}, GRAD),
    (
        "all_gather_into_tensor",
        {"input_tensor": lambda: torch.ones(3, device="meta")},
        "input_tensor: is on meta",
    ),
    (
        "all_gather_into_tensor",
        part_shifted("input_tensor", "output_tensor"),
        f"output_tensor and input_tensor {PAIRS}",
    ),
    ("broadcast", {"src": 7}, f"src {ROOTS} 7"),
    ("broadcast", {"src": -1}, "src must be one of the group's"),
    ("broadcast", {"group_src": 4}, "group_src must be one of"),
    ("broadcast", {"src": 0, "group_src": 0}, "src and group_src: pass one of them, not both"),
    ("broadcast", {"algorithm": "ring"}, "algorithm must be one of chain, naive, tree, got 'ring'"),
    ("broadcast", {"tensor": leaf}, f"tensor: {GRAD}"),
    ("broadcast", {"tensor": lambda: torch.ones(1).expand(3)}, f"tensor: {SHARED}"),
    ("reduce", {"dst": 4}, "dst must be one of the group's ranks"),
    ("reduce", {"op": ReduceOp.BXOR}, "op must be one of SUM, AVG, PRODUCT"),
    ("reduce", {"tensor": leaf, "dst": BAD}, f"tensor: {GRAD}"),
    ("gather", {"dst": 0, "gather_list": slots}, "gather_list: only the root, rank 0, passes one"),
    ("gather", {"gather_list": lambda: ones(3, 3, 3)}, f"gather_list: {LENGTH} 3"),
    (
        "gather",
        {"gather_list": lambda: ones(3, 4, 3, 3)},
        "gather_list[1]: expected 3 elements, as in tensor, got 4",
    ),
    ("gather", {"gather_list": lambda: [leaf(), *ones(3, 3, 3)]}, f"gather_list[0]: {GRAD}"),
    ("gather", {"gather_list": twice}, f"gather_list[0] and gather_list[1] {PAIRS}"),
    ("gather", own_slot_shifted, f"tensor and gather_list[0] {PAIRS}"),
    ("scatter", {"src": 0, "scatter_list": slots}, "scatter_list: only the root, rank 0, passes"),
    ("scatter", {"scatter_list": lambda: ones(*[3] * 5)}, f"scatter_list: {LENGTH} 5"),
    (
        "scatter",
        {"scatter_list": lambda: ones(3, 3, 3, 2)},
        "scatter_list[3]: expected 3 elements, as in tensor, got 2",
    ),
    ("all_gather", {"tensor_list": lambda: ones(3, 3)}, f"tensor_list: {LENGTH} 2"),
    ("all_gather", {"tensor_list": twice}, f"tensor_list[0] and tensor_list[1] {PAIRS}"),
    ("all_gather", {"tensor_list": lambda: [three()] * RANKS}, PAIRS),
    (
        "all_gather",
        {"tensor_list": lambda: ones(3, 3, 5, 3)},
        "tensor_list[2]: expected 3 elements, as in tensor, got 5",
    ),
    (
        "reduce_scatter",
        {"input_list": lambda: ones(3, 4, 3, 3)},
        "input_list[1]: expected 3 elements, as in output, got 4",
    ),
    ("reduce_scatter", {"op": "SUM"}, "op must be one of SUM, AVG, PRODUCT"),
    ("reduce_scatter", {"output": leaf}, f"output: {GRAD}"),
    ("all_to_all", {"input_tensor_list": lambda: ones(3)}, f"input_tensor_list: {LENGTH} 1"),
    ("all_to_all", neighbours, f"output_tensor_list[0] and input_tensor_list[0] {PAIRS}"),
    (
        "all_to_all_single",
        {"input_split_sizes": [1, 1, 1, 2]},
        "input_split_sizes: [1, 1, 1, 2] add up to 5, not 4 rows",
    ),
    (
        "all_to_all_single",
        {"input_split_sizes": [1, 1, 2, 0]},
        "input (by input_split_sizes) has 4 elements for this rank itself, but output (by",
    ),
    (
        "all_to_all_single",
        {"output_split_sizes": [2, 2]},
        "output_split_sizes: expected 4 sizes, one for each rank, got 2",
    ),
    (
        "all_to_all_single",
        {"input_split_sizes": [5, 1, -1, -1]},
        "input_split_sizes: expected whole numbers from 0 on, got [5, 1, -1, -1]",
    ),
    (
        "all_to_all_single",
        {"output": lambda: torch.ones(6, 2)},
        "output: 6 rows cannot be split evenly between 4 ranks; pass output_split_sizes",
    ),
    (
        "all_to_all_single",
        {"input": lambda: torch.tensor(1.0)},
        "input: expected at least one dimension, got none",
    ),
    ("all_to_all_single", in_place, f"output and input {PAIRS}"),
    ("ring_shift", {"tensor": leaf}, f"tensor: {GRAD}"),
]
TYPES: list[tuple[str, object, str]] = [  # TypeError, likewise
    ("all_reduce", {"tensor": lambda: torch.ones(2, 3).to_sparse()}, "torch.sparse_coo"),
    ("all_reduce", {"tensor": lambda: torch.ones(2, 3).to_sparse_csr()}, "torch.sparse_csr"),
    (
        "all_reduce",
        {"tensor": lambda: torch.nested.nested_tensor([torch.ones(2), three()])},
        "tensor: expected a plain dense tensor, got a nested one",
    ),
    ("all_reduce", {"tensor": [1.0, 2.0]}, "tensor: expected a torch.Tensor, got a list"),
    ("all_reduce", {"tensor": fake}, "tensor: expected a plain torch.Tensor, got a FakeTensor"),
    ("all_reduce", {"tensor": dtensor}, "torch.Tensor, got a DTensor; pass its to_local()"),
    (
        "reduce_scatter_tensor",
        {"output": lambda: three().double()},
        "input and output: dtypes differ: torch.float32 for the whole, torch.float64 for",
    ),
    (
        "reduce_scatter_tensor",
        {"input": lambda: whole().to_sparse()},
        "input: expected a dense tensor, got layout torch.sparse_coo",
    ),
    (
        "all_gather_into_tensor",
        {"output_tensor": lambda: whole().bool()},
        "output_tensor and input_tensor: dtypes differ: torch.bool for the whole",
    ),
    (
        "all_gather_into_tensor",
        {"output_tensor": slots},
        "output_tensor: expected a torch.Tensor, got a list",
    ),
    ("broadcast", {"src": "0"}, "src: expected the number of a rank, got '0'"),
    ("gather", {"gather_list": None}, f"gather_list: {LENGTH} a NoneType"),
    (
        "gather",
        {"gather_list": lambda: [*ones(3, 3, 3), three().double()]},
        "gather_list[3]: expected torch.float32, as tensor has, got torch.float64",
    ),
    (
        "gather",
        {"gather_list": lambda: [0.5, *ones(3, 3, 3)]},
        "gather_list[0]: expected a torch.Tensor, got a float",
    ),
    ("scatter", {"scatter_list": None}, f"scatter_list: {LENGTH} a NoneType"),
    ("scatter", {"scatter_list": torch.ones(4, 3)}, f"scatter_list: {LENGTH} a Tensor"),
    (
        "all_gather",
        {"tensor_list": lambda: [three().int(), *ones(3, 3, 3)]},
        "tensor_list[0]: expected torch.float32, as tensor has, got torch.int32",
    ),
    ("reduce_scatter", {"input_list": torch.ones(4, 3)}, f"input_list: {LENGTH} a Tensor"),
    ("all_to_all", {"output_tensor_list": None}, f"output_tensor_list: {LENGTH} a NoneType"),
    (
        "all_to_all",
        {"output_tensor_list": lambda: [*ones(3, 3, 3), three().half()]},
        "output_tensor_list[3]: expected torch.float32, as input_tensor_list[0] has",
    ),
    (
        "all_to_all_single",
        {"output": lambda: rows().bool()},
        "output: expected torch.float32, as input has, got torch.bool",
    ),
    ("ring_shift", {"by": 1.5}, "by: expected a whole number, got 1.5"),
]
MEANINGLESS = [  # for op and dtype
    ("MAX", torch.complex64),
    ("MIN", torch.complex128),
    ("AVG", torch.bool),
    ("AVG", torch.complex32),  # a kernel to add, none to divide
]

OWN = {
    f"{name} {number}, {said}": Case(call(name, wrong), error, said, name)
    for error, table in ((ValueError, VALUES), (TypeError, TYPES))
    for number, (name, wrong, said) in enumerate(table)
} | {
    f"{op} of {dtype}": Case(
        call("all_reduce", {"op": getattr(ReduceOp, op)}, of(dtype)),
        TypeError,
        f"op {op} has no meaning for {dtype}",
        "all_reduce",
    )
    for op, dtype in MEANINGLESS
}
assert len(OWN) == len(VALUES) + len(TYPES) + len(MEANINGLESS)


# ---- arguments that are right, but not the same on all ranks ----


def others(argument: str, odd: str, rest: str) -> str:
    return f"the ranks disagree on {argument}: rank 2 passed {odd}; ranks 0, 1, 3 passed {rest}"


def another(name: str, instead: str) -> Call:
    return lambda bad: call(name if bad else instead, {})(bad)


def with_another_root(bad: bool) -> object:
    given = None if dist.get_rank() else slots()
    return minidist.gather(three(), given, dst=3 * bad)


ONES = (1,) * 60  # as text longer than what is sent of one argument
NODES = {"algorithm": "hierarchical", "local_ranks": 4}
INTS = {"output": lambda: rows().int(), "input": lambda: rows().int()}
DISAGREE: dict[str, tuple[Call, str]] = {
    "shapes": (
        call("all_reduce", {"tensor": lambda: torch.ones(3, 2)}),
        others("tensor's shape", "(3, 2)", "(2, 3)"),
    ),
    "dtypes": (
        call("all_reduce", {"tensor": lambda: torch.ones(2, 3).double()}),
        others("tensor's dtype", "torch.float64", "torch.float32"),
    ),
    "ops": (call("all_reduce", {"op": ReduceOp.MAX}), others("op", "MAX", "SUM")),
    "algorithms": (call("all_reduce", {"algorithm": "tree"}), others("algorithm", "tree", "ring")),
    "shared memory on one": (
        call("all_reduce", {"algorithm": "shared_memory"}),
        others("algorithm", "shared_memory", "ring"),
    ),
    "shapes in shared memory": (
        call("all_reduce", {"tensor": lambda: torch.ones(2, 4)}, {"algorithm": "shared_memory"}),
        others("tensor's shape", "(2, 4)", "(2, 3)"),
    ),
    "native on one": (
        call("all_reduce", {"algorithm": "native"}),
        others("algorithm", "native", "ring"),
    ),
    "another collective": (
        another("all_gather_into_tensor", "all_reduce"),
        others("the call", "all_gather_into_tensor", "all_reduce"),
    ),
    "a barrier": (another("broadcast", "barrier"), others("the call", "broadcast", "barrier")),
    "long shapes": (
        call(
            "all_reduce",
            {"tensor": lambda: torch.ones(*ONES, 2)},
            {"tensor": lambda: torch.ones(*ONES, 3)},
        ),
        "the ranks disagree on tensor's shape: rank 2 passed (1, 1",
    ),
    "sizes of parts": (
        call(
            "all_gather_into_tensor",
            {"output_tensor": lambda: torch.ones(20), "input_tensor": lambda: torch.ones(5)},
        ),
        others("output_tensor's shape", "(20,)", "(12,)"),
    ),
    "roots": (call("broadcast", {"src": 1}), others("the root", "rank 1", "rank 0")),
    "roots of a gather": (with_another_root, others("the root", "rank 3", "rank 0")),
    "algorithms of a broadcast": (
        call("broadcast", {"algorithm": "chain"}),
        others("algorithm", "chain", "tree"),
    ),
    "ops of a reduce": (call("reduce", {"op": ReduceOp.MAX}), others("op", "MAX", "SUM")),
    "shifts": (call("ring_shift", {"by": -1}), others("by", "-1", "1")),
    "nodes": (call("all_reduce", {"local_ranks": 2}, NODES), others("local_ranks", "2", "4")),
    "dtypes of blocks": (
        call("all_to_all_single", INTS),
        others("input's dtype", "torch.int32", "torch.float32"),
    ),
    "splits": (
        call("all_to_all_single", {"input_split_sizes": [2, 0, 1, 1]}),
        "all_to_all_single: rank 2's input (by input_split_sizes) has 4 elements for rank 0, "
        "whose output (by output_split_sizes) has room for 2",
    ),
    "blocks": (
        call("all_to_all", {"output_tensor_list": lambda: ones(3, 4, 3, 3)}),
        "all_to_all: rank 1's input_tensor_list has 3 elements for rank 2, "
        "whose output_tensor_list has room for 4",
    ),
    "parts of an all-gather": (
        call(
            "all_gather",
            {"tensor": lambda: torch.ones(5), "tensor_list": lambda: ones(5, 5, 5, 5)},
        ),
        others("tensor's shape", "(5,)", "(3,)"),
    ),
    "parts of a reduce-scatter": (
        call(
            "reduce_scatter",
            {"output": lambda: torch.ones(2), "input_list": lambda: ones(2, 2, 2, 2)},
        ),
        others("output's shape", "(2,)", "(3,)"),
    ),
}
