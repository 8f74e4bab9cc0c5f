"""More calls that are wrong on one rank: those with a root, with lists, and with blocks."""

from collections.abc import Callable
from types import FunctionType

import torch

import minidist
from minidist import ReduceOp
from tests.collectives.bad_calls import BAD, GRAD, RANKS, SHARED, Call, Case, others

EVERYBODY = list(range(RANKS))
PAIRS = "share memory; pass a clone() of one of them"
LENGTH = f"expected a list of {RANKS} tensors, one for each rank, got"


def ones(*sizes: int) -> list[torch.Tensor]:
    return [torch.ones(size) for size in sizes]


def twice(*more: int) -> list[torch.Tensor]:
    """A list whose first two tensors share an element."""
    both = torch.ones(5)
    return [both[:3], both[2:], *ones(*more)]


def call(function: Callable[..., object], *right: Callable[[], object], **options: object) -> Call:
    """The call with these arguments; `wrong`: those of the bad rank, by place or name."""
    wrong = dict(options.pop("wrong", {}))

    def one(bad: bool) -> object:
        arguments: list[object] = [make() for make in right]
        named = dict(options)
        for key, value in wrong.items() if bad else ():
            value = value() if isinstance(value, FunctionType) else value
            if isinstance(key, int):
                arguments[key] = value
            else:
                named[key] = value
        return function(*arguments, **named)

    return one


def three() -> torch.Tensor:
    return torch.ones(3)


def broadcast(**wrong: object) -> Call:
    return call(minidist.broadcast, three, wrong=wrong)


def reduce(**wrong: object) -> Call:
    return call(minidist.reduce, three, wrong=wrong)


def to_root(function: Callable[..., object], tensors: object, root: str) -> Call:
    """A gather or scatter whose root is the bad rank, with this list."""
    options = {root: BAD}

    def one(bad: bool) -> object:
        given = tensors() if callable(tensors) else tensors
        return function(torch.ones(3), given if bad else None, **options)

    return one


def gather(tensors: object) -> Call:
    return to_root(minidist.gather, tensors, "dst")


def scatter(tensors: object) -> Call:
    return to_root(minidist.scatter, tensors, "src")


def gather_own(bad: bool) -> object:
    tensor = torch.ones(4)
    slots = [tensor[1:], *ones(3, 3, 3)]
    return minidist.gather(tensor[:3], slots if bad else None, dst=BAD)


def off_root(function: Callable[..., object]) -> Call:
    """The root is rank 0, which does all right."""

    def one(bad: bool) -> object:
        at_root = torch.distributed.get_rank() == 0
        return function(torch.ones(3), ones(3, 3, 3, 3) if bad or at_root else None)

    return one


def all_gather(**wrong: object) -> Call:
    numbered = {{"tensor_list": 0, "tensor": 1}[name]: value for name, value in wrong.items()}
    return call(minidist.all_gather, lambda: ones(3, 3, 3, 3), three, wrong=numbered)


def reduce_scatter(**wrong: object) -> Call:
    numbered = {{"output": 0, "input_list": 1}.get(name, name): v for name, v in wrong.items()}
    return call(minidist.reduce_scatter, three, lambda: ones(3, 3, 3, 3), wrong=numbered)


def all_to_all(**wrong: object) -> Call:
    numbered = {{"output": 0, "input": 1}[name]: value for name, value in wrong.items()}
    both = [lambda: ones(3, 3, 3, 3)] * 2
    return call(minidist.all_to_all, *both, wrong=numbered)


def single(**wrong: object) -> Call:
    places = {"output": 0, "input": 1}
    numbered = {places.get(name, name): value for name, value in wrong.items()}
    both = [lambda: torch.ones(RANKS, 2)] * 2
    return call(minidist.all_to_all_single, *both, wrong=numbered)


def one_for_both(
    function: Callable[..., object], make: Callable[[], tuple[object, object]]
) -> Call:
    """Two arguments made together on the bad rank, apart on the others."""

    def one(bad: bool) -> object:
        first, second = make()
        if not bad:
            first = [each.clone() for each in first] if isinstance(first, list) else first.clone()
        return function(first, second)

    return one


def overlapping_parts() -> tuple[torch.Tensor, torch.Tensor]:
    whole = torch.ones(RANKS * 3)
    return whole[1:4], whole


def overlapping_whole() -> tuple[torch.Tensor, torch.Tensor]:
    return overlapping_parts()[::-1]


def same_twice() -> tuple[torch.Tensor, torch.Tensor]:
    return (whole := torch.ones(RANKS, 2)), whole


def neighbours() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    both = torch.ones(RANKS, 5)
    return list(both[:, :3].unbind()), list(both[:, 2:].unbind())


def leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True)


def named(collective: str, cases: dict[str, tuple[Call, type[Exception], str]]) -> dict[str, Case]:
    return {f"{collective}, {name}": Case(*case, collective) for name, case in cases.items()}


OWN = (
    named(
        "broadcast",
        {
            "root": (
                broadcast(src=7),
                ValueError,
                f"src must be one of the group's ranks {EVERYBODY}, got 7",
            ),
            "negative root": (broadcast(src=-1), ValueError, "src must be one of the group's"),
            "group's root": (broadcast(group_src=4), ValueError, "group_src must be one of"),
            "root is text": (
                broadcast(src="0"),
                TypeError,
                "src: expected the number of a rank, got '0'",
            ),
            "both roots": (
                broadcast(src=0, group_src=0),
                ValueError,
                "src and group_src: pass one of them, not both",
            ),
            "algorithm": (
                broadcast(algorithm="ring"),
                ValueError,
                "algorithm must be one of chain, naive, tree, got 'ring'",
            ),
            "grad": (
                call(minidist.broadcast, three, wrong={0: leaf}),
                ValueError,
                f"tensor: {GRAD}",
            ),
            "shared": (
                call(minidist.broadcast, three, wrong={0: lambda: torch.ones(1).expand(3)}),
                ValueError,
                f"tensor: {SHARED}",
            ),
        },
    )
    | named(
        "reduce",
        {
            "root": (reduce(dst=4), ValueError, "dst must be one of the group's ranks"),
            "op": (reduce(op=ReduceOp.BXOR), ValueError, "op must be one of SUM, AVG, PRODUCT"),
            "grad": (
                call(minidist.reduce, three, dst=BAD, wrong={0: leaf}),
                ValueError,
                f"tensor: {GRAD}",
            ),
        },
    )
    | named(
        "gather",
        {
            "list off the root": (
                off_root(minidist.gather),
                ValueError,
                "gather_list: only the root, rank 0, passes one; got 4",
            ),
            "no list": (gather(None), TypeError, f"gather_list: {LENGTH} a NoneType"),
            "short list": (gather(lambda: ones(3, 3, 3)), ValueError, f"gather_list: {LENGTH} 3"),
            "size": (
                gather(lambda: ones(3, 4, 3, 3)),
                ValueError,
                "gather_list[1]: expected 3 elements, as in tensor, got 4",
            ),
            "dtype": (
                gather(lambda: [*ones(3, 3, 3), three().double()]),
                TypeError,
                "gather_list[3]: expected torch.float32, as tensor has, got torch.float64",
            ),
            "no tensor": (
                gather(lambda: [0.5, *ones(3, 3, 3)]),
                TypeError,
                "gather_list[0]: expected a torch.Tensor, got a float",
            ),
            "grad": (
                gather(lambda: [leaf(), *ones(3, 3, 3)]),
                ValueError,
                f"gather_list[0]: {GRAD}",
            ),
            "overlap": (
                gather(lambda: twice(3, 3)),
                ValueError,
                f"gather_list[0] and gather_list[1] {PAIRS}",
            ),
            "own": (gather_own, ValueError, f"tensor and gather_list[0] {PAIRS}"),
        },
    )
    | named(
        "scatter",
        {
            "list off the root": (
                off_root(minidist.scatter),
                ValueError,
                "scatter_list: only the root, rank 0, passes one; got 4",
            ),
            "no list": (scatter(None), TypeError, f"scatter_list: {LENGTH} a NoneType"),
            "long list": (scatter(lambda: ones(*[3] * 5)), ValueError, f"scatter_list: {LENGTH} 5"),
            "size": (
                scatter(lambda: ones(3, 3, 3, 2)),
                ValueError,
                "scatter_list[3]: expected 3 elements, as in tensor, got 2",
            ),
            "a tensor": (scatter(torch.ones(4, 3)), TypeError, f"scatter_list: {LENGTH} a Tensor"),
        },
    )
    | named(
        "all_gather",
        {
            "short list": (
                all_gather(tensor_list=lambda: ones(3, 3)),
                ValueError,
                f"tensor_list: {LENGTH} 2",
            ),
            "dtype": (
                all_gather(tensor_list=lambda: [three().int(), *ones(3, 3, 3)]),
                TypeError,
                "tensor_list[0]: expected torch.float32, as tensor has, got torch.int32",
            ),
            "overlap": (
                all_gather(tensor_list=lambda: twice(3, 3)),
                ValueError,
                f"tensor_list[0] and tensor_list[1] {PAIRS}",
            ),
            "own size": (
                all_gather(tensor=lambda: torch.ones(1)),
                ValueError,
                "tensor has 1 elements for this rank itself, but tensor_list has room for 3",
            ),
            "same twice": (
                all_gather(tensor_list=lambda: [three()] * RANKS),
                ValueError,
                f"tensor_list[0] and tensor_list[1] {PAIRS}",
            ),
        },
    )
    | named(
        "reduce_scatter",
        {
            "no list": (
                reduce_scatter(input_list=lambda: torch.ones(RANKS, 3)),
                TypeError,
                f"input_list: {LENGTH} a Tensor",
            ),
            "own size": (
                reduce_scatter(output=lambda: torch.ones(4)),
                ValueError,
                "input_list has 3 elements for this rank itself, but output has room for 4",
            ),
            "op": (reduce_scatter(op="SUM"), ValueError, "op must be one of SUM, AVG, PRODUCT"),
            "grad": (reduce_scatter(output=leaf), ValueError, f"output: {GRAD}"),
        },
    )
    | named(
        "all_to_all",
        {
            "short list": (
                all_to_all(input=lambda: ones(3)),
                ValueError,
                f"input_tensor_list: {LENGTH} 1",
            ),
            "no list": (
                all_to_all(output=None),
                TypeError,
                f"output_tensor_list: {LENGTH} a NoneType",
            ),
            "dtype": (
                all_to_all(output=lambda: [*ones(3, 3, 3), three().half()]),
                TypeError,
                "output_tensor_list[3]: expected torch.float32, as input_tensor_list[0] has",
            ),
            "overlap": (
                one_for_both(minidist.all_to_all, neighbours),
                ValueError,
                f"output_tensor_list[0] and input_tensor_list[0] {PAIRS}",
            ),
        },
    )
    | named(
        "all_to_all_single",
        {
            "splits do not add up": (
                single(input_split_sizes=[1, 1, 1, 2]),
                ValueError,
                "input_split_sizes: [1, 1, 1, 2] add up to 5, not 4 rows",
            ),
            "own rows": (
                single(input_split_sizes=[1, 1, 2, 0]),
                ValueError,
                "input (by input_split_sizes) has 4 elements for this rank itself, but output (by",
            ),
            "short splits": (
                single(output_split_sizes=[2, 2]),
                ValueError,
                "output_split_sizes: expected 4 sizes, one for each rank, got 2",
            ),
            "negative split": (
                single(input_split_sizes=[5, 1, -1, -1]),
                ValueError,
                "input_split_sizes: expected whole numbers from 0 on, got [5, 1, -1, -1]",
            ),
            "indivisible": (
                single(output=lambda: torch.ones(6, 2)),
                ValueError,
                "output: 6 rows cannot be split evenly between 4 ranks; pass output_split_sizes",
            ),
            "no rows": (
                single(input=lambda: torch.tensor(1.0)),
                ValueError,
                "input: expected at least one dimension, got none",
            ),
            "dtype": (
                single(output=lambda: torch.ones(RANKS, 2).bool()),
                TypeError,
                "output: expected torch.float32, as input has, got torch.bool",
            ),
            "in place": (
                one_for_both(minidist.all_to_all_single, same_twice),
                ValueError,
                f"output and input {PAIRS}",
            ),
        },
    )
    | named(
        "reduce_scatter_tensor",
        {
            "overlap": (
                one_for_both(minidist.reduce_scatter_tensor, overlapping_parts),
                ValueError,
                f"input and output {PAIRS}",
            ),
        },
    )
    | named(
        "all_gather_into_tensor",
        {
            "overlap": (
                one_for_both(minidist.all_gather_into_tensor, overlapping_whole),
                ValueError,
                f"output_tensor and input_tensor {PAIRS}",
            ),
        },
    )
    | named(
        "ring_shift",
        {
            "by": (
                call(minidist.ring_shift, three, wrong={"by": 1.5}),
                TypeError,
                "by: expected a whole number, got 1.5",
            ),
            "grad": (
                call(minidist.ring_shift, three, wrong={0: leaf}),
                ValueError,
                f"tensor: {GRAD}",
            ),
        },
    )
    | named(
        "all_reduce",
        {
            "nodes": (
                call(
                    minidist.all_reduce,
                    three,
                    algorithm="hierarchical",
                    wrong={"local_ranks": 3},
                ),
                ValueError,
                "local_ranks: 4 ranks cannot be split into nodes of 3",
            ),
            "no nodes": (
                call(
                    minidist.all_reduce,
                    three,
                    algorithm="hierarchical",
                    wrong={"local_ranks": 0},
                ),
                ValueError,
                "local_ranks: 4 ranks cannot be split into nodes of 0",
            ),
        },
    )
)


def another_call(bad: bool) -> object:
    return minidist.broadcast(three()) if bad else minidist.barrier()


DISAGREE = {
    "roots": (broadcast(src=1), others("the root", "rank 1", "rank 0")),
    "roots of a gather": (
        lambda bad: minidist.gather(
            three(), None if torch.distributed.get_rank() else ones(3, 3, 3, 3), dst=3 * bad
        ),
        others("the root", "rank 3", "rank 0"),
    ),
    "algorithms of a broadcast": (
        broadcast(algorithm="chain"),
        others("algorithm", "chain", "tree"),
    ),
    "ops of a reduce": (reduce(op=ReduceOp.MAX), others("op", "MAX", "SUM")),
    "a barrier": (another_call, others("the call", "broadcast", "barrier")),
    "shifts": (
        call(minidist.ring_shift, three, wrong={"by": -1}),
        others("by", "-1", "1"),
    ),
    "nodes": (
        call(
            minidist.all_reduce,
            three,
            algorithm="hierarchical",
            local_ranks=4,
            wrong={"local_ranks": 2},
        ),
        others("local_ranks", "2", "4"),
    ),
    "dtypes of blocks": (
        single(output=lambda: torch.ones(4, 2).int(), input=lambda: torch.ones(4, 2).int()),
        others("input's dtype", "torch.int32", "torch.float32"),
    ),
    "splits": (
        single(input_split_sizes=[2, 0, 1, 1]),
        "all_to_all_single: rank 2's input (by input_split_sizes) has 4 elements for rank 0, "
        "whose output (by output_split_sizes) has room for 2",
    ),
    "blocks": (
        all_to_all(output=lambda: ones(3, 4, 3, 3)),
        "all_to_all: rank 1's input_tensor_list has 3 elements for rank 2, "
        "whose output_tensor_list has room for 4",
    ),
    "parts of an all-gather": (
        all_gather(tensor=lambda: torch.ones(5), tensor_list=lambda: ones(3, 3, 5, 3)),
        "all_gather: rank 2's tensor has 5 elements for rank 0, whose tensor_list has room for 3",
    ),
    "parts of a reduce-scatter": (
        reduce_scatter(output=lambda: torch.ones(2), input_list=lambda: ones(3, 3, 2, 3)),
        "reduce_scatter: rank 0's input_list has 3 elements for rank 2, "
        "whose output has room for 2",
    ),
}
