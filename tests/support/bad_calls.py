"""Calls that are wrong on one rank, and what a collective must say of them."""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

import minidist
from minidist import ReduceOp
from minidist.collectives.fit import fit
from minidist.collectives.tuner import CHOSEN
from minidist.diagnose.records import read
from minidist.memory.activations import saved
from minidist.memory.meter import measured
from minidist.memory.state import state
from minidist.schedule import algorithms, pipeline
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
    "broadcast": {"tensor": three, "src": 0},
    "reduce": {"tensor": three, "dst": 0},
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


def of(op: ReduceOp.RedOpType, dtype: torch.dtype) -> dict[str, Any]:
    return {"op": op, "tensor": lambda: torch.ones(2, 3, dtype=dtype)}


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


def columns() -> list[torch.Tensor]:
    return list(torch.ones(3, RANKS).unbind(1))


STRANGE = '\0"\\é\n' * 500  # what escapes to many times its length
GRAD = "requires grad, but is written in place; pass tensor.detach()"
SHARED = "has elements that share memory, so it cannot be written; pass a clone()"
PLAIN = "expected a plain, dense torch.Tensor, got a"
PAIRS = "share memory; pass a clone() of one of them"
NO_OP = "op must be one of ReduceOp's SUM, AVG, PRODUCT, MIN, MAX, got "
NAMES = f"algorithm must be one of {', '.join([*ALL_REDUCE, *CHOSEN])}, got "
LENGTH = f"expected a list of {RANKS} tensors, one for each rank, got"
SPLITS = "input_split_sizes: expected 4 numbers that add up to input's 4 rows, one for each rank"

VALUES: list[tuple[str, object, str]] = [  # ValueError: collective, what is wrong, what is said
    ("all_reduce", {"op": ReduceOp.BAND}, f"{NO_OP}<RedOpType.BAND"),
    ("all_reduce", {"op": torch.ones(2)}, f"{NO_OP}tensor("),
    ("all_reduce", {"algorithm": ["ring"]}, f"{NAMES}['ring']"),
    ("all_reduce", {"algorithm": STRANGE}, NAMES),
    ("all_reduce", {"tensor": leaf}, f"tensor: {GRAD}"),
    ("all_reduce", {"tensor": lambda: three().expand(2, 3)}, f"tensor: {SHARED}"),
    ("all_reduce", {"tensor": lambda: torch.ones(9).as_strided((2, 3), (2, 1))}, SHARED),
    ("all_reduce", {"tensor": lambda: torch.ones(2, 3, device="meta")}, "tensor: is on meta, but "),
    ("reduce_scatter_tensor", {"output": lambda: torch.ones(4)}, "input: expected 4 x 4 elements"),
    ("reduce_scatter_tensor", part_shifted("output", "input"), f"input and output {PAIRS}"),
    (
        "all_gather_into_tensor",
        {"output_tensor": lambda: torch.ones(11)},
        "output_tensor: expected 4 x 3 elements, for input_tensor has 3, got 11",
    ),
    ("all_gather_into_tensor", part_shifted("input_tensor", "output_tensor"), PAIRS),
    ("broadcast", {"src": 7}, "src must be one of the group's ranks [0, 1, 2, 3], got 7"),
    ("broadcast", {"src": None, "group_src": 4}, "group_src must be one of"),
    ("broadcast", {"src": None}, "src must be one of the group's ranks [0, 1, 2, 3], got None"),
    ("reduce", {"dst": None}, "dst must be one of the group's ranks [0, 1, 2, 3], got None"),
    ("broadcast", {"src": 0, "group_src": 0}, "src and group_src: pass one of them, not both"),
    ("broadcast", {"src": True}, "src must be one of the group's ranks [0, 1, 2, 3], got True"),
    ("broadcast", {"tensor": leaf}, f"tensor: {GRAD}"),
    ("gather", {"gather_list": lambda: ones(3, 3, 3)}, f"gather_list: {LENGTH} 3"),
    ("gather", {"gather_list": lambda: ones(3, 4, 3, 3)}, "gather_list[1]: expected 1 x 3 "),
    ("gather", {"gather_list": lambda: [leaf(), *ones(3, 3, 3)]}, f"gather_list[0]: {GRAD}"),
    ("gather", own_slot_shifted, f"tensor and gather_list[0] {PAIRS}"),
    ("all_gather", {"tensor_list": lambda: [three()] * RANKS}, PAIRS),
    ("all_gather", {"tensor_list": columns}, PAIRS),
    ("reduce_scatter", {"input_list": lambda: ones(3, 4, 3, 3)}, "for output has 3, got 4"),
    ("all_to_all", neighbours, f"output_tensor_list[0] and input_tensor_list[0] {PAIRS}"),
    ("all_to_all_single", {"input_split_sizes": [1, 1, 1, 2]}, f"{SPLITS}, got [1, 1, 1, 2]"),
    ("all_to_all_single", {"input_split_sizes": [5, 1, -1, -1]}, SPLITS),
    ("all_to_all_single", {"output": lambda: torch.ones(6, 2)}, "output's 6 rows"),
    ("all_to_all_single", in_place, f"output and input {PAIRS}"),
]
TYPES: list[tuple[str, object, str]] = [  # TypeError, likewise
    ("all_reduce", {"tensor": [1.0, 2.0]}, "tensor: expected a torch.Tensor, got a list"),
    ("all_reduce", {"async_op": "no"}, "async_op: expected True or False, got 'no'"),
    ("all_reduce", {"async_op": 1.5}, "async_op: expected True or False, got 1.5"),
    ("all_reduce", {"check": "no"}, "check: expected True or False, got 'no'"),
    ("all_reduce", {"tensor": lambda: torch.ones(2, 3).to_sparse()}, "layout torch.sparse_coo"),
    ("all_reduce", {"tensor": lambda: torch.nested.nested_tensor([three()])}, f"tensor: {PLAIN}"),
    ("all_reduce", {"tensor": fake}, f"tensor: {PLAIN} FakeTensor"),
    ("all_reduce", {"tensor": dtensor}, f"tensor: {PLAIN} DTensor"),
    ("all_reduce", of(ReduceOp.MAX, torch.complex64), "op MAX has no meaning for torch.complex64"),
    ("all_reduce", of(ReduceOp.AVG, torch.bool), "op AVG has no meaning for torch.bool"),
    ("all_reduce", of(ReduceOp.AVG, torch.uint8), "op AVG: the ranks' sum may not fit into"),
    ("all_reduce", of(ReduceOp.AVG, torch.int16), "op AVG: the ranks' sum may not fit into"),
    ("all_reduce", of(ReduceOp.AVG, torch.complex32), "op AVG has no meaning for torch.complex32"),
    ("gather", {"gather_list": None}, f"gather_list: {LENGTH} a NoneType"),
    ("gather", {"gather_list": lambda: [0.5, *ones(3, 3, 3)]}, "gather_list[0]: expected a torch."),
    (
        "all_to_all",
        {"output_tensor_list": lambda: [*ones(3, 3, 3), three().half()]},
        "output_tensor_list[3]: expected torch.float32, as output_tensor_list[0] has",
    ),
]
OWN = {
    f"{name} {number}, {said}": Case(call(name, wrong), error, said, name)
    for error, table in ((ValueError, VALUES), (TypeError, TYPES))
    for number, (name, wrong, said) in enumerate(table)
}
assert len(OWN) == len(VALUES) + len(TYPES)


# ---- arguments that are right, but not the same on all ranks ----


def others(argument: str, odd: str, rest: str) -> str:
    return f"the ranks disagree on {argument}: rank 2 passed {odd}; ranks 0, 1, 3 passed {rest}"


def another(name: str, instead: str) -> Call:
    return lambda bad: call(name if bad else instead, {})(bad)


def in_nodes(bad: bool) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "2" if bad else "4")
        return minidist.all_reduce(three(), algorithm="hierarchical")


ONES = (1,) * 60  # as text longer than what is sent of one argument
INTS = {"output": lambda: rows().int(), "input": lambda: rows().int()}
IN_MEMORY = {"algorithm": "shared_memory"}
DISAGREE: dict[str, tuple[Call, str]] = {
    "shapes": (
        call("all_reduce", {"tensor": lambda: torch.ones(3, 2)}),
        others("tensor's shape", "(3, 2)", "(2, 3)"),
    ),
    "dtypes": (
        call("all_reduce", {"tensor": lambda: torch.ones(2, 3).double()}),
        others("tensor's dtype", "torch.float64", "torch.float32"),
    ),
    "ops": (call("reduce", {"op": ReduceOp.MAX}), others("op", "MAX", "SUM")),
    "algorithms": (call("all_reduce", {"algorithm": "tree"}), others("algorithm", "tree", "ring")),
    "shared memory on one": (
        call("all_reduce", IN_MEMORY),
        others("algorithm", "shared_memory", "ring"),
    ),
    "shapes in shared memory": (
        call("all_reduce", {"tensor": lambda: torch.ones(2, 4)}, IN_MEMORY),
        others("tensor's shape", "(2, 4)", "(2, 3)"),
    ),
    "nodes": (in_nodes, others("LOCAL_WORLD_SIZE", "2", "4")),
    "another collective": (
        another("all_gather_into_tensor", "barrier"),
        others("the call", "all_gather_into_tensor", "barrier"),
    ),
    "long shapes": (
        call(
            "all_reduce",
            {"tensor": lambda: torch.ones(*ONES, 2)},
            {"tensor": lambda: torch.ones(*ONES, 3)},
        ),
        "the ranks disagree on tensor's shape: rank 2 passed (1, 1",
    ),
    "roots": (call("broadcast", {"src": 1}), others("the root", "rank 1", "rank 0")),
    "shifts": (call("ring_shift", {"by": 1.5}), others("by", "1.5", "1")),
    "dtypes of blocks": (
        call("all_to_all_single", INTS),
        others("input's dtype", "torch.int32", "torch.float32"),
    ),
    "splits": (
        call("all_to_all_single", {"input_split_sizes": [2, 0, 1, 1]}),
        "all_to_all_single: rank 2's input (by input_split_sizes) has 4 elements for rank 0, "
        "whose output (by output_split_sizes) has room for 2",
    ),
    "what stays": (
        call("all_to_all_single", {"input_split_sizes": [1, 1, 2, 0]}),
        "all_to_all_single: rank 2's input (by input_split_sizes) has 4 elements for rank 2, ",
    ),
    "blocks": (
        call("all_to_all", {"output_tensor_list": lambda: ones(3, 4, 3, 3)}),
        "all_to_all: rank 1's input_tensor_list has 3 elements for rank 2, "
        "whose output_tensor_list has room for 4",
    ),
}


# ---- in one process: no number, no list, no function ----

none: Any = None
half: Any = 1.5
word: Any = "FB"
KINDS: list[tuple[Callable[[], object], str]] = [
    (lambda: algorithms.ring_all_reduce(word), "ranks: expected a whole number, got 'FB'"),
    (lambda: algorithms.hierarchical_all_reduce(4, local=none), "local: expected a whole number"),
    (lambda: algorithms.segments(half), "nbytes: expected a whole number, got 1.5"),
    (lambda: pipeline.bubble([]), "passes: expected those of a step, got none"),
    (lambda: pipeline.bubble(none), "passes: expected Sequence, got None"),
    (lambda: pipeline.messages(word), "order: expected Sequence, got 'FB'"),
    (lambda: pipeline.in_turns([], [], half), "ahead: expected a whole number, got 1.5"),
    (lambda: saved(none), "forward: expected Callable, got None"),
    (lambda: measured(int, word), "device: expected device, got 'FB'"),
    (lambda: fit([], none), "topology: expected Callable, got None"),
    (lambda: read(none), "folder: expected str or PathLike, got None"),
    (lambda: state(1, optimizer=[]), r"optimizer must be one of .*, got \[\]"),  # type: ignore[arg-type]
    (lambda: minidist.map_reduce(none, int, int), "inputs: expected an iterable, .*, got None"),
    (lambda: minidist.map_reduce([], int, int, timeout=word), "timeout must be .*, got 'FB'"),
]
