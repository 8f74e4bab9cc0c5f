"""The ring: its prices by hand, and wrong answers for the graders of its lab."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import minidist  # noqa: F401, in a table
from course.ask.switchboard import Deadlock
from course.ask.verdict import Grader, Verdict
from course.chapters.gpus import figures as drawn
from course.chapters.ring import exercises as grade
from course.chapters.ring.threads import Exchange, Threads
from course.pages.price import ask, step_of
from course.pages.published import curve
from course.timing.fits import at_size, through_ends
from minidist.formulas.memory import bucket_bytes
from tests.course.verdicts import diagnosed, reader


def ring(
    *,
    first: int = -1,
    second: int = 0,
    more: tuple[int, int] = (0, 0),
    add: tuple[bool, bool] = (True, False),
    slot: int = 0,
    turn: int = 1,
    rebind: bool = False,
    of: int | None = None,
) -> Callable[[int, int, list[torch.Tensor], Exchange], None]:
    """A ring by hand, right as it stands, with a knob for each way to get it wrong."""

    def by_hand(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
        n = of or ranks
        right, left = (rank + turn) % n, (rank - turn) % n
        for start, extra, adds in zip((first, second), more, add, strict=True):
            for step in range(n - 1 + extra):
                received = exchange(chunks[(rank + start - step) % n], right, left)
                to = (rank + start - step - 1 + slot) % n
                if rebind:
                    chunks[to] = chunks[to] + received if adds else received
                elif adds:
                    chunks[to] += received
                else:
                    chunks[to].copy_(received)

    return by_hand


def exchanging(how: Callable[..., torch.Tensor]) -> Any:
    """The right ring, whose calls go through how(exchange, chunk, to, source)."""
    return lambda rank, ranks, chunks, exchange: ring()(
        rank, ranks, chunks, lambda *call: how(exchange, *call)
    )


def forever(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    while True:
        exchange(chunks[0], (rank + 1) % ranks, (rank - 1) % ranks)


def whole_tensor(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    """The tensor goes round and round: N times the bytes."""
    mine = travelling = torch.cat(chunks)
    for _ in range(ranks - 1):
        travelling = exchange(travelling, (rank + 1) % ranks, (rank - 1) % ranks)
        mine = mine + travelling
    for chunk, summed in zip(chunks, mine.split([len(c) for c in chunks]), strict=True):
        chunk.copy_(summed)


def gather_all(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    """Each chunk of each rank goes round by itself."""
    for chunk in chunks:
        travelling = chunk.clone()
        for _ in range(ranks - 1):
            travelling = exchange(travelling, (rank + 1) % ranks, (rank - 1) % ranks)
            chunk += travelling


def on_real_ranks(way: Callable[[torch.Tensor], object]) -> Any:
    """The right ring on threads, and `way` where there are processes."""

    def cheats(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
        if dist.get_world_size() == 1:
            ring()(rank, ranks, chunks, exchange)
            return
        tensor = torch.cat(chunks)
        way(tensor)
        for chunk, summed in zip(chunks, tensor.split([len(c) for c in chunks]), strict=True):
            chunk.copy_(summed)

    return cheats


def equally_long(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    table = torch.stack(chunks)
    ring()(rank, ranks, list(table), exchange)
    for chunk, row in zip(chunks, table, strict=True):
        chunk.copy_(row)


def pairs(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    for chunk in chunks:
        chunk += exchange(chunk, rank ^ 1, rank ^ 1)


def marks(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    """The sums of the chunks that the grader sends round on threads."""
    for place, chunk in enumerate(chunks):
        chunk.zero_()[place * ranks : (place + 1) * ranks] = 1


def spins(rank: int, ranks: int, chunks: list[torch.Tensor], exchange: Exchange) -> None:
    while True:
        rank += 1


def test_the_other_right_ring_is_right_and_told_apart() -> None:
    verdict = grade.ring_all_reduce(ring(first=0, second=1))
    assert verdict
    assert "your rank r starts with chunk r+0; minidist's starts with chunk r-1" in verdict.text


def test_a_deadlock_between_threads_is_found_at_once_and_named() -> None:
    def all_wait(rank: int, exchange: Exchange) -> None:
        exchange(torch.zeros(1), (rank + 1) % 3, (rank + 1) % 3)

    with pytest.raises(Deadlock, match="3 ranks wait for one another in a circle: rank 0 for"):
        Threads(3).run(all_wait)

    def one_leaves(rank: int, exchange: Exchange) -> None:
        if rank:
            exchange(torch.zeros(1), (rank + 1) % 3, (rank - 1) % 3)

    with pytest.raises(Deadlock, match=r"^rank 1 waits for rank 0, which has ended"):
        Threads(3).run(one_leaves)


def test_a_verdict_is_shown_as_text_and_without_markup_of_its_own() -> None:
    verdict = Verdict("wrong", "a < b\nand more")
    assert str(verdict) == "Wrong. A < b\nand more"
    shown = verdict._repr_html_()
    assert shown.endswith('"><b>Wrong.</b> A &lt; b<br>and more</p>')
    assert "#cf222e" in shown, "red, in Jupyter too"
    assert str(Verdict("right", "for 9 lists. So it is.")) == "Correct for 9 lists. So it is."
    assert str(Verdict("right", "the judge agrees.")) == "Correct. The judge agrees."


def test_a_grader_remembers_what_was_right_first() -> None:
    grade_it = Grader(lambda function: function())
    with pytest.raises(RuntimeError, match="first solve the exercise above"):
        _ = grade_it.solved

    def mine() -> str:
        return "tried"

    def solution() -> str:
        return "tried too"

    assert grade_it(mine)
    assert grade_it(solution)
    assert grade_it.solved is mine


def equal(numel: int, n: int, size: int) -> list[tuple[int, int]]:
    return [(r * size, (r + 1) * size) for r in range(n)]


def slices(numel: int, n: int) -> list[tuple[int, int]]:
    edges = [rank * (numel // n) + min(rank, numel % n) for rank in range(n + 1)]
    return list(pairwise(edges))


def crossover(n: int, alpha: float, beta: float, *, log: Any = math.ceil, ring: int = 1) -> float:
    """Right as it stands, with knobs to get it wrong."""
    there, back = 2 * (n - ring), 2 * log(math.log2(n))
    return float(alpha / beta * (there - back) / (back - there / n))


def test_numbers_of_other_types_are_right() -> None:
    assert grade.bytes_sent(lambda n, size: np.int64(2 * (n - 1) * size // n))
    assert grade.slices(lambda *case: np.array(slices(*case)))
    assert grade.crossover(lambda *case: torch.tensor(crossover(*case)).double())
    assert grade.crossover(lambda *case: math.floor(crossover(*case))), "rounded to whole bytes"


@pytest.mark.parametrize(
    ("gpus", "at_line_rate", "as_published"),
    [(8, 50.0, 46.6), (16, 60.4, 51.4), (32, 62.6, 68.1), (64, 64.1, 78.9)],
)
def test_sums_of_the_small_model(gpus: int, at_line_rate: float, as_published: float) -> None:
    least = 2 * (gpus - 1) / gpus * 4 * 3_212_749_824 / (450e9 if gpus == 8 else 400e9)
    line_rate, published = (ask("all_reduce", gpus=gpus, tariff=t) for t in TARIFFS)
    assert least < line_rate < 1.015 * least, "a ring's bytes, and its latency"
    assert (1e3 * line_rate, 1e3 * published) == pytest.approx(
        (at_line_rate, as_published), abs=0.1
    )


TARIFFS = "line rate", "published"


def test_most_buckets_of_the_small_model_are_as_large_as_the_mark_in_the_figure() -> None:
    mebibytes = Counter(round(size / 2**20) for size in bucket_bytes(step_of("small", 8, 8192)))
    assert mebibytes == {96: 84, 60: 28, 36: 28, 1503: 1}
    assert drawn.MARK == 96 * 2**20


@pytest.mark.parametrize(
    ("name", "ratio"), [("h100-1x8-nvls", 0.82), ("h100-2x8-ib", 0.69), ("a100-1x8-nvlink", 0.79)]
)
def test_one_line_is_off_by_a_quarter_for_most_buckets(name: str, ratio: float) -> None:
    rows = curve(name)["rows"]
    found = through_ends(rows)(drawn.MARK) / at_size(rows, drawn.MARK)
    assert found == pytest.approx(ratio, abs=0.005)


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.ring_all_reduce] = rows(r"""
mistake | ring(first=0) | step 4 of 6: rank 0 sent chunk 0, expected .* The second phase
off by one | ring(more=(1, 1)) | rank 0 makes more than 6 exchanges.*needs N - 1 = 3
mistake | ring(more=(0, -3)) | rank 0 made 3 of the .* = 6 .*That is the first phase
mistake | ring(add=(False, False))
    | step 2 of 6: .* chunk 2 with the part of 3, .* was not added
mistake | ring(add=(True, True))
    | step 5 of 6: .* chunk 3 .*0\+0\+.* in it twice: .* overwritten
off by one | ring(slot=1) | step 2 of 6: rank 0 sent chunk 2 .*A part is missing
mistake | ring(turn=-1) | rank 0 sent to rank 3, expected its right neighbor, rank 1
input | ring(rebind=True) | every message is right, but .*chunks\[\.\.\.\] in place
these sizes | ring(of=4) | With 2 ranks: on rank 0 it raised IndexError
these sizes | equally_long | On 4 real processes ranks? .* raised RuntimeError: stack
two ranks | pairs | rank 2 sent to rank 3|step 1 of 6: rank . (sent|received)
hangs | forever | rank . makes exchange after exchange; it needs 2\(N - 1\) = 6
hangs | spins | With 4 ranks: rank 0 does not come to an end; it needs 2\(N - 1\)
mistake | exchanging(lambda exchange, chunk, *way: exchange(chunk[:1], *way))
    | step 1 of 6: rank 0 sent 1 elements, expected the 16 of one chunk
mistake | exchanging(lambda exchange, *call: exchange(*call).round())
    | rank 0 of 4, the sums .* between real processes, differ from all_reduce's
mistake | exchanging(lambda exchange, chunk, to, _: exchange(chunk, to, to))
    | received from rank 1, expected rank 3, its left
traffic | whole_tensor | rank 0 sent 64 elements, expected the 16 of one chunk
gathers all | gather_all | rank . makes more than 6 exchanges
constant | marks | rank 0 made 0 of the 2\(N - 1\) = 6 exchanges
torch's own | on_real_ranks(dist.all_reduce) | calls torch.distributed's all_reduce
torch's own | on_real_ranks(minidist.all_reduce) | your function calls minidist\.
""")
WRONG[grade.slices] = rows(r"""numel, n
mistake | equal(numel, n, numel // n) | are in no slice; they are lost
mistake | equal(numel, n, -(-numel // n)) | that would be padding
off by one | equal(numel, n, numel // n)[:-1] | you return 3 slices
mistake | [(0, numel)] * n | some elements are in two
off by one | [(a, b - 1) for a, b in slices(numel, n)] | are in no slice
mistake | [*equal(numel, n, numel // n)[:-1], ((n - 1) * (numel // n), numel)] | spread the rest
mistake | [(0, -1)] * n | ends before it starts
constant | equal(64, 4, 16) | 10 elements on 4 ranks:
two ranks | [(0, numel // 2), (numel // 2, numel)] | you return 2 slices
these sizes | slices(numel, n) if numel < 100 else equal(numel, n, numel // n)
    | \d\d\d+ elements on \d+ ranks: the last
type | None | you return None; expected a list of pairs
type | [(a, b / 1.5) for a, b in slices(numel, n)] | expected a list of
type | [a for a, _ in slices(numel, n)] | expected a list of pairs
""")
WRONG[grade.crossover] = [
    ("mistake", lambda n, alpha, beta: alpha / beta, "ring is slower, .* at a larger size"),
    ("constant", lambda n, alpha, beta: 1e12, "the tree is slower, .* at a smaller size"),
    ("unit", lambda *case: crossover(*case) / 4, "the ring is slower"),
    ("off by one", lambda *case: crossover(*case, ring=0), "the tree is slower"),
    ("these sizes", lambda *case: crossover(*case, log=lambda x: x), "For 100 ranks"),
    ("these sizes", lambda n, *link: crossover(8, *link), "For 4 ranks"),
    ("these sizes", lambda n, *_: crossover(n, 1e-5, 1e-9), "alpha 3e-06 s"),
    ("type", lambda n, alpha, beta: 0, "expected a number of bytes above zero"),
    ("type", lambda *case: f"{crossover(*case)} bytes", "expected a number of bytes"),
]

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
