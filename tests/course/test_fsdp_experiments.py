"""The graders of the lab that takes FSDP apart: mistakes get a diagnosis."""

from typing import Any

import numpy as np

from course.chapters.fsdp import exercises as grade
from tests.course.verdicts import diagnosed, reader
from tests.support.by_hand import fsdp as hand

# ---- uneven rows ----


def rounded_up(rows: int, ranks: int) -> list[tuple[int, int]]:
    each = -(-rows // ranks)
    return [(min(r * each, rows), min((r + 1) * each, rows)) for r in range(ranks)]


def test_a_rank_without_rows_may_say_so_in_any_way() -> None:
    def at_zero(rows: int, ranks: int) -> list[tuple[int, int]]:
        return [(a, b) if a < b else (0, 0) for a, b in rounded_up(rows, ranks)]

    assert grade.rows(at_zero)


def test_other_right_ways_are_right_too() -> None:
    assert grade.norm(hand.norm_of_norms)
    assert grade.norm(lambda parts, comm: np.float64(hand.norm(parts, comm).double()))
    assert grade.rows(lambda rows, ranks: np.array(rounded_up(rows, ranks)))


rows = reader(globals())
WRONG: dict[Any, list[tuple[str, Any, str]]] = {}
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
two ranks | =hand.norm_of_two | on rank 0 of 3, you return .*, expected
these sizes | =hand.norm_without_none | ranks? .* raised AttributeError
traffic | =hand.one_by_one | the norm is right, but it takes 2 calls of comm; one is enough
gathers all | =hand.norm_gathered | the norm is right, but .* 1.5 times the .* that are enough
torch's own | =hand.norm_by_torch | torch.distributed's all_reduce. Use comm
""")

test_a_wrong_answer_is_diagnosed = diagnosed(WRONG)
