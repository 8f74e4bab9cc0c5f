"""The graders of the lab on FSDP: mistakes get a diagnosis."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from course.graders import fsdp as grade
from tests.course.verdicts import diagnosed, reader, says
from tests.support.by_hand import fsdp as hand


def test_ranks_that_make_other_calls_are_found() -> None:
    says("disagree on the call.*the same calls.*grader's", grade.unit(hand.from_rank_0_only))


# ---- uneven rows ----


def rounded_up(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(min(r * each, rows), min((r + 1) * each, rows)) for r in range(ranks)]


def overhanging(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(r * each, (r + 1) * each) for r in range(ranks)]


def half_overhanging(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(r * each, min((r + 1) * each, rows)) for r in range(ranks)]


def rounded_down(rows: int, ranks: int) -> list[tuple[int, int]]:
    return [(r * (rows // ranks), (r + 1) * (rows // ranks)) for r in range(ranks)]


def even(rows: int, ranks: int) -> list[tuple[int, int]]:
    return list(itertools.pairwise(round(rows * r / ranks) for r in range(ranks + 1)))


def test_a_rank_without_rows_may_say_so_in_any_way() -> None:
    def at_zero(rows: int, ranks: int) -> list[tuple[int, int]]:
        return [(a, b) if a < b else (0, 0) for a, b in rounded_up(rows, ranks)]

    assert grade.rows(at_zero)


def test_other_right_ways_are_right_too() -> None:
    assert grade.norm(hand.norm_of_norms)
    assert grade.norm(lambda parts, comm: np.float64(hand.norm(parts, comm).double()))
    assert grade.rows(lambda rows, ranks: np.array(rounded_up(rows, ranks)))


# ---- the peak ----


def whole_at_a_time(blocks: list[int], prefetch: bool) -> int:
    return max((sum(blocks[i : i + 1 + prefetch]) for i in range(len(blocks))), default=0)


def held(
    whole: Callable[[list[int], bool], float], *, root: bool = True, shards: bool = True
) -> Any:
    def my_peak(units: list[int], ranks: int, prefetch: bool) -> float:
        kept = sum(units) / ranks if shards else 0
        return kept + (units[0] if root else 0) + whole(units[1:], prefetch)

    return my_peak


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
WRONG[grade.unit] = rows(r"""
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) * comm.ranks)
    | is the sum over 3 ranks, .*: divide by their number
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) / comm.ranks) | divided twice
mistake | hand.unit(scatter=lambda g, comm: g.chunk(comm.ranks)[comm.rank])
    | the gradient is still its own
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g.view(comm.ranks, -1).flip(0).flatten(),
    comm))
    | that of rank 2's weights. Rank 0 keeps part 0
mistake | hand.unit(scatter=lambda g, _: g) | shape \[12\], expected \[4\]
mistake | hand.unit(scatter=lambda *_: None) | you return None, expected a part of the gradient
traffic | hand.unit(scatter=hand.all_reduced) | is right, but .* 1.3 times
mistake | hand.unit(scatter=lambda g, comm: hand.scatter(g, comm) + 1e-3)
    | is off by up to 1.0e-03
mistake | hand.unit(gather=lambda shard, comm: shard.repeat(comm.ranks))
    | forward got are not those of all ranks
memory | hand.never_resharded | still in memory when backward begins. Reshard
memory | hand.kept_for_later | still in memory when all is over
mistake | lambda shard, forward, *_: forward(shard)
    | On rank \d of 3 forward got \[4\], expected all \[12\]
mistake | lambda shard, forward, _, comm: forward(hand.gather(shard, comm))
    | backward was never called
mistake | lambda shard, *rest: (hand.unit()(shard, *rest), shard.mul_(2))[0]
    | the shard has been changed
constant | hand.unit(scatter=lambda g, comm: hand.scatter(g * comm.ranks / 3, comm))
    | rank 0 of 5 the gradient is 1.67 times
two ranks | hand.unit(scatter=lambda g, comm: hand.scatter(g * comm.ranks / 2, comm))
    | rank 0 of 3 the gradient is 1.5 times the average
these sizes | hand.unit(gather=lambda shard, comm: hand.gather(shard[:4], comm))
    | forward got \[12\], expected all \[21\]
gathers all | hand.unit(scatter=hand.gathered)
    | the gradient is right, but .* 1.7 times the .*each rank's own part
traffic | hand.unit(gather=lambda shard, comm: hand.gather(shard, comm) + 0 * hand.gather(shard,
    comm))
    | is right, but .* 1.7 times
traffic | hand.unit(scatter=hand.in_halves) | make fewer calls
torch's own | hand.by_lists | torch.distributed's all_gather. Use comm
torch's own | hand.unit(scatter=hand.around_comm)
    | only .* bytes that it takes were counted.*comm's calls alone
memory | hand.copied | only .* counted. Gather before forward and again before backward
""")
WRONG[grade.rows] = rows(r"""rows, ranks
mistake | =overhanging | There is no row 7: cut at 5
mistake | =half_overhanging | must not end before it begins
mistake | =rounded_down | Row 4 is nobody's: round up
mistake | =even | as even as can be.*\[2, 2, 1, 0\] rows
mistake | rounded_up(rows, ranks)[:-1] | a rank without rows
mistake | rounded_up(rows, ranks)[::-1] | Expected \[2, 2, 2, 2\] rows
mistake | [rows // ranks] * ranks | expected .start, end. of each
constant | [(0, 2), (2, 4), (4, 6), (6, 8)] | There is no row 7: cut at 5
two ranks | (rounded_up(rows, 2) + [(rows, rows)] * ranks)[:ranks]
    | For 8 rows on 4 ranks .*Expected
off by one | [(a, max(a, b - 1)) for a, b in rounded_up(rows, ranks)] | Row 1 is nobody's
type | None | you return None; expected .start, end. of each
""")
WRONG[grade.norm] = rows("""parts, comm
mistake | hand.squares(parts).sqrt() | the norm of this rank's part alone
mistake | hand.total(hand.squares(parts).sqrt(), comm) | Norms do not add up: their squares do
mistake | hand.total(hand.squares(parts).sqrt(), comm) / comm.ranks
    | the mean of the ranks' norms
mistake | hand.norm(parts, comm) / comm.ranks**0.5 | do not average them
mistake | hand.norm(parts, comm) ** 2 | That is its square
mistake | hand.total(hand.squares(parts).sqrt(), comm).sqrt() | sum their squares
mistake | hand.norm([g if g is None else g.mul_(2) for g in parts], comm)
    | gradients have been changed
mistake | None | you return None, expected a number
constant | 1.0 | you return 1.0000, expected
two ranks | =hand.norm_of_two | on rank 0 you return .*, expected
these sizes | =hand.norm_without_none | ranks? .* raised AttributeError
traffic | =hand.one_by_one | the norm is right, but it takes 2 calls of comm; one is enough
gathers all | =hand.norm_gathered | the norm is right, but .* 1.5 times the .* that are enough
torch's own | =hand.norm_by_torch | torch.distributed's all_reduce. Use comm
""")
WRONG[grade.peak] = rows("""
mistake | held(whole_at_a_time, shards=False) | The shards are held all the time
mistake | held(whole_at_a_time, root=False) | The root's own weights are whole until
mistake | held(lambda blocks, _: whole_at_a_time(blocks, False)) | With prefetch two units
mistake | held(lambda blocks, _: whole_at_a_time(blocks, True)) | without one
mistake | held(lambda blocks, two: sum(sorted(blocks)[-1 - two :]))
    | two largest need not follow each other
mistake | held(lambda blocks, two: (1 + two) * max(blocks, default=0))
    | not as large as the largest|need not follow
mistake | held(lambda blocks, _: sum(blocks)) | Not all units are whole
mistake | lambda units, ranks, prefetch: sum(units) | the whole model
constant | lambda units, ranks, prefetch: 175 | with prefetch=True you say 175 weights; it is 275
two ranks | lambda units, ranks, prefetch: held(whole_at_a_time)(units, 2, prefetch)
    | on 4 ranks with prefetch=False you say
unit | lambda *case: 4 * held(whole_at_a_time)(*case) | you say 700 weights; it is 175
type | lambda units, ranks, prefetch: None | expected a number of weights
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
