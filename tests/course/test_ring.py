"""Graders: each typical mistake gets its diagnosis."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from course.graders import ring as grade
from course.graders.verdict import Verdict
from course.sandbox.threads import Deadlock, Exchange, Rank, Threads
from tests.course.verdicts import each_mistake, says


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


def test_the_other_right_ring_is_right_and_told_apart() -> None:
    verdict = grade.ring_all_reduce(ring(first=0, second=1))
    assert verdict
    assert "your rank r starts with chunk r+0; minidist's starts with chunk r-1" in verdict.text


def equal(numel: int, n: int, size: int) -> list[tuple[int, int]]:
    return [(r * size, (r + 1) * size) for r in range(n)]


def test_a_deadlock_between_threads_is_found_at_once_and_named() -> None:
    def all_wait(rank: int, calls: Rank) -> None:
        calls.exchange(torch.zeros(1), (rank + 1) % 3, (rank + 1) % 3)

    with pytest.raises(Deadlock, match="rank 0 waits for rank 1, rank 1 waits for rank 2"):
        Threads(3).run(all_wait)

    def one_leaves(rank: int, calls: Rank) -> None:
        if rank:
            calls.exchange(torch.zeros(1), (rank + 1) % 3, (rank - 1) % 3)

    with pytest.raises(Deadlock, match=r"^rank 1 waits for rank 0$"):
        Threads(3).run(one_leaves)


def test_a_verdict_is_shown_as_text_and_without_markup_of_its_own() -> None:
    verdict = Verdict("wrong", "a < b\nand more")
    assert str(verdict) == "Wrong: a < b\nand more"
    assert (
        verdict._repr_html_() == '<p class="verdict wrong"><b>Wrong.</b> a &lt; b<br>and more</p>'
    )


MISTAKES: dict[Any, list[tuple[Any, str]]] = {}
MISTAKES[grade.ring_all_reduce] = [
    (ring(first=0), r"step 4 of 6: rank 0 sent chunk 0, expected chunk 1\. The second phase"),
    (ring(more=(1, 1)), r"rank 0 makes more than 6 exchanges\. Each phase needs N - 1 = 3"),
    (ring(more=(0, -3)), r"rank 0 made 3 of the 2\(N - 1\) = 6 .*That is the first phase"),
    (ring(add=(False, False)), r"step 2 of 6: .* chunk 2 with the part of 3, .* was not added"),
    (ring(add=(True, True)), r"step 5 of 6: .* chunk 3 .*0\+0\+.* in it twice: .* overwritten"),
    (ring(slot=1), r"step 2 of 6: rank 0 sent chunk 2 .*A part is missing"),
    (
        ring(turn=-1),
        r"step 1 of 6: rank 0 sent to rank 3, expected its right neighbour, rank 1",
    ),
    (ring(rebind=True), r"every message is right, but .* Write into chunks\[\.\.\.\] in place"),
    (ring(of=4), r"With 2 ranks: on rank 0 it raised IndexError"),
    (forever, r"rank . makes exchange after exchange; it needs 2\(N - 1\) = 6"),
    (
        exchanging(lambda exchange, chunk, *way: exchange(chunk[:1], *way)),
        r"step 1 of 6: rank 0 sent 1 of the 16 elements of a chunk",
    ),
    (
        exchanging(lambda exchange, *call: exchange(*call).round()),
        r"On .*real processes the sums differ .* on ranks \[0, 1, 2, 3\]",
    ),
    (
        exchanging(lambda exchange, chunk, to, _: exchange(chunk, to, to)),
        r"received from rank 1, expected rank 3, its left one",
    ),
]
MISTAKES[grade.bytes_sent] = [
    (lambda n, size: (n - 1) * size / n, "That is one phase"),
    (lambda n, size: 2 * (n - 1) * size, "Each message is one chunk"),
    (lambda n, size: 2 * size, "the limit for many ranks"),
    (lambda n, size: (n - 1) * size, "the root of the naive way"),
    (lambda n, size: 2 * (n - 1), "the number of messages"),
]
MISTAKES[grade.slices] = [
    (lambda numel, n: equal(numel, n, numel // n), "elements are in no slice; they are lost"),
    (lambda numel, n: equal(numel, n, -(-numel // n)), "that would be padding"),
    (lambda numel, n: equal(numel, n, numel // n)[:-1], "you return 3 slices"),
    (lambda numel, n: [(0, numel)] * n, "some elements are in two"),
    (
        lambda numel, n: [*equal(numel, n, numel // n)[:-1], ((n - 1) * (numel // n), numel)],
        "spread the rest",
    ),
    (lambda numel, n: [(0, -1)] * n, "ends before it starts"),
    (lambda numel, n: None, "you return None; expected a list of pairs"),
]
MISTAKES[grade.crossover] = [
    (lambda n, alpha, beta: alpha / beta, "the ring is slower, so they cross at a larger size"),
    (lambda n, alpha, beta: 1e12, "the tree is slower, so they cross at a smaller size"),
    (lambda n, alpha, beta: 0, "expected a number of bytes above zero"),
]


@each_mistake(MISTAKES)
def test_a_mistake_is_diagnosed(grader: Any, mistake: Any, diagnosis: str) -> None:
    says(diagnosis, grader(mistake))
