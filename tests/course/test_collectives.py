"""Collectives: prices by hand, and wrong answers for the graders of the lab."""

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist  # noqa: F401, in a table

import minidist  # noqa: F401, in a table
from course.chapters.collectives import exercises as grade
from course.pages.price import ask
from minidist.schedule.algorithms import pairwise_all_to_all
from minidist.schedule.traffic import traffic
from tests.course.verdicts import diagnosed, reader


def gather(*, copy: Any = torch.clone, slot: int = 0, roots: Any = lambda n, _: range(n)) -> Any:
    """An all-gather by broadcasts, right as it stands, with a knob for each way to get it wrong."""

    def by_hand(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
        ranks = len(parts)
        if copy:
            parts[(rank + slot) % ranks].copy_(copy(mine))
        for src in roots(ranks, rank):
            broadcast(parts[(src + slot) % ranks], src)

    return by_hand


def through_mine(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    for src in range(len(parts)):
        broadcast(mine, src)
        parts[src].copy_(mine)


def taken(mine: torch.Tensor) -> torch.Tensor:
    values = mine.clone()
    mine.zero_()
    return values


def only_small(mine: torch.Tensor) -> torch.Tensor:
    if mine.numel() > 100:
        raise ValueError("too large")
    return mine


def forever(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    while True:
        broadcast(mine, 0)


def scatter(
    *, calls: int = 1, add: Any = lambda _, received: sum(received), write: Any = torch.Tensor.copy_
) -> Any:
    """A reduce-scatter by all_to_all, right as it stands, with knobs to get it wrong."""

    def by_hand(output: Any, inputs: Any, all_to_all: Any) -> None:
        for _ in range(calls):
            received = [torch.empty_like(part) for part in inputs]
            all_to_all(received, inputs)
        write(output, add(inputs, received))

    return by_hand


def into_inputs(output: Any, inputs: Any, all_to_all: Any) -> None:
    all_to_all(inputs, inputs)
    output.copy_(sum(inputs))


def spoils(output: Any, inputs: Any, all_to_all: Any) -> None:
    scatter()(output, inputs, all_to_all)
    inputs[0].zero_()


def swapped(output: Any, inputs: Any, all_to_all: Any) -> None:
    received = [torch.zeros_like(part) for part in inputs]
    all_to_all(inputs, received)
    output.copy_(sum(received))


def all_at_once(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    """N calls, of N times the bytes."""
    for src, part in enumerate(parts):
        everything = torch.stack([mine] * len(parts))
        broadcast(everything, src)
        part.copy_(everything[0])


def for_four(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    parts[rank].copy_(mine)
    for src in range(4):
        broadcast(parts[src], src)


def numbers(parts: Any, mine: Any, rank: int, broadcast: Any) -> None:
    for src, part in enumerate(parts):
        broadcast(part, src)
        part.fill_(src)


def spins(*_: Any) -> None:
    while True:
        time.sleep(0.1)


def tables(output: Any, inputs: Any, all_to_all: Any) -> None:
    """Everybody sends everything to everybody."""
    everything = torch.stack(list(inputs))
    received = [torch.empty_like(everything) for _ in inputs]
    all_to_all(received, [everything] * len(inputs))
    places = [d for d in range(len(inputs)) if torch.equal(received[d], everything)]
    output.copy_(sum(each[places[0]] for each in received))


def one_by_one(output: Any, inputs: Any, all_to_all: Any) -> None:
    """A call for each part, padded by what nobody needs."""
    output.zero_()
    for source in range(len(inputs)):
        received = [torch.empty_like(part) for part in inputs]
        all_to_all(received, inputs)
        output += received[source]


RIGHT = {
    "A": "gather",
    "B": "reduce_scatter",
    "C": "broadcast",
    "D": "all_to_all",
    "E": "scatter",
    "F": "reduce",
}


def but(**answer: str) -> Any:
    return lambda: RIGHT | answer


def test_no_two_pictures_are_alike() -> None:
    shown = {(each.start, each.goal) for each in grade.pictures().values()}
    assert len(shown) == len(RIGHT)


def test_tokens_to_experts_go_through_each_rank_s_own_network_card() -> None:
    nbytes, blocks = 8192 * 4096 * 2, 64 * 64
    sent = traffic(pairwise_all_to_all(64), blocks, itemsize=1, local=8)
    out = sent.between_nodes / blocks  # of the tokens of a rank
    assert out == 56 / 64
    assert ask("all_to_all", "medium", gpus=64) == pytest.approx(out * nbytes / 50e9)
    assert ask("all_to_all", "medium", gpus=8) == pytest.approx(7 / 8 * nbytes / 450e9)


def test_calls_of_a_model_are_compared_with_its_own_compute() -> None:
    def share(what: str, job: str, strategy: str) -> float:
        how: Any = {"gpus": 64, "strategy": strategy}
        return ask(what, job, **how) / ask("compute", job, **how)

    assert share("all_reduce", "small", "ddp") == pytest.approx(0.117, abs=5e-4)
    assert share("all_gather", "medium", "fsdp") == pytest.approx(0.037, abs=5e-4)
    assert share("communication", "medium", "fsdp") == pytest.approx(0.171, abs=5e-4)


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.names] = [
    ("mistake", but(A="all_gather"), r"picture A: after the call rank 0 has nothing in column 0"),
    ("mistake", but(B="scatter"), r"B: before the call rank 1 has the part of rank 1 in column 0"),
    ("mistake", but(C="all_gather"), r"picture C: before the call"),
    ("mistake", but(D="all_gather"), r"D is an all_to_all: .* a different block for every rank"),
    ("mistake", but(A="all_to_all"), r"picture A is not an all_to_all"),
    ("mistake", but(F="all_reduce"), r"F: after the call rank 0 has nothing .*ranks 0, 1, 2, 3"),
    ("mistake", but(F="sum"), r"picture F: sum is none of all_gather, all_reduce, "),
    ("constant", lambda: dict.fromkeys(RIGHT, "gather"), "picture B: .* In gather it would have"),
    ("off by one", lambda: dict(zip("BCDEFA", RIGHT.values(), strict=True)), "picture A: "),
    ("these sizes", lambda: {"A": "gather"}, "picture B: nothing is none of"),
    ("type", lambda: list(RIGHT.values()), "expected a dict of letters and names"),
    ("type", lambda: None, "you return None; expected a dict"),
]
WRONG[grade.all_gather] = rows(r"""
order | gather(roots=lambda n, rank: [rank])
    | disagree on the root: rank 0 passed rank 0; rank 1 passed rank 1.*in the same order
mistake | gather(copy=None) | rank 0 of 4, nothing was written into parts\[0\]\. A broadcast
input | through_mine | on rank 0 of 4, parts\[1\] holds rank 0's, expected rank 1's `mine`
off by one | gather(slot=1) | parts\[0\] holds rank 3's, expected rank 0's `mine`
traffic | gather(roots=lambda n, _: [*range(n), 0])
    | the result is right, in 5 calls of broadcast; 4 are enough
traffic | all_at_once | right, but .* What do the calls of broadcast move that nobody needs
input | gather(copy=taken) | the input was changed; read it only
order | lambda parts, mine, rank, broadcast: rank and broadcast(mine, 1)
    | rank 0 passed barrier; ranks 1, 2, 3 passed broadcast.*barrier is this grader's
off by one | gather(roots=lambda n, _: [n]) | ValueError: .* src must be .* got 4
    \(test_collectives.py, line
these sizes | gather(copy=only_small) | 4 real processes ranks? .* raised ValueError: too la
two ranks | gather(roots=lambda n, _: range(n)[:2])
    | on rank 0 of 4, nothing was written into parts\[2\]
these sizes | for_four | On 2 real processes ranks? .* raised IndexError
constant | numbers | on rank 0 of 4, parts\[0\] holds 0 everywhere, expected rank 0's
mistake | gather(copy=torch.round) | parts\[0\] holds .* everywhere, expected rank 0's
hangs | forever | makes call after call of broadcast
hangs | spins | did not end within 15 s \(test_collectives.py, line .*, in spins\)
torch's own | lambda parts, mine, *_: dist.all_gather(parts, mine)
    | your function calls torch.distributed's all_gather. Use `broadcast`
torch's own | lambda parts, mine, *_: minidist.all_gather(parts, mine)
    | in 0 calls of broadcast; 4 are enough. Use broadcast and nothing else
""")
WRONG[grade.reduce_scatter] = rows(r"""
mistake | scatter(add=lambda inputs, _: sum(inputs))
    | rank 0 of 4, `output` holds 0→0 \+ 0→1 .* expected 0→0 \+ 1→0 \+ 2→0 \+ 3→0
input | scatter(write=torch.Tensor.add_) | holds what was in it before, too
input | scatter(write=lambda *_: None) | nothing was written into `output`, in place
input | into_inputs | share memory; pass a clone
input | spoils | the input was changed; read it only
mistake | swapped | `output` holds 0 blocks, expected
traffic | scatter(calls=2) | is right, in 2 calls of all_to_all; one is enough
traffic | one_by_one | is right, in 4 calls of all_to_all; one is enough
gathers all | tables | right, but .* What do the calls of all_to_all move that nobody needs
two ranks | scatter(add=lambda _, got: got[0] + got[-1])
    | on rank 0 of 4, `output` holds 0→0 \+ 3→0, expected
off by one | scatter(add=lambda _, got: sum(got[1:])) | holds 1→0 \+ 2→0 \+ 3→0, expected
mistake | lambda output, inputs, all_to_all: all_to_all([output], inputs)
    | all_to_all: .* expected a list of 4 tensors, .* got 1
torch's own | lambda output, parts, _: dist.reduce_scatter(output, parts)
    | your function calls torch.distributed's reduce_scatter. Use `all_to_all`
torch's own | lambda output, parts, _: minidist.reduce_scatter(output, parts)
    | in 0 calls of all_to_all; one is enough. Use all_to_all and nothing else
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
