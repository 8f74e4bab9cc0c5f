"""Grader of the lab on experts: the dispatch."""

from collections import Counter

from course.ask.table import Exercise, Table
from course.ask.verdict import draws, list_of, whole


@Exercise
def received() -> Table:
    """Grade function(choices, experts, capacity): how many tokens each rank receives.

    choices[r] has the expert of each token of rank r; rank r has an equal part of the experts, in
    order; of each rank's tokens, an expert takes at most `capacity`.
    """
    draw, cases = draws(63), []
    for ranks, each, tokens, capacity in [(2, 2, 6, 2), (4, 1, 8, 3), (3, 2, 9, 2), (1, 3, 7, 2)]:
        popular = range(ranks * each), [3] + (ranks * each - 1) * [1]
        drawn = [draw.choices(*popular, k=tokens + rank % 2) for rank in range(ranks)]
        cases += [(drawn, ranks * each, capacity), (drawn, ranks * each, tokens)]

    def taken(choices: list[list[int]], most: float) -> list[Counter[int]]:
        return [Counter({e: min(own.count(e), int(most)) for e in own}) for own in choices]

    def totals(choices: list[list[int]], experts: int, capacity: float) -> list[int]:
        every = sum(taken(choices, capacity), Counter[int]())
        return [every[expert] for expert in range(experts)]

    def by_rank(ranks: int, every: list[int]) -> list[int]:
        each = len(every) // ranks
        return [sum(every[start : start + each]) for start in range(0, len(every), each)]

    def right(choices: list[list[int]], experts: int, capacity: float) -> list[int]:
        return by_rank(len(choices), totals(choices, experts, capacity))

    return Table(
        cases=cases,
        right=right,
        told=lambda choices, experts, capacity: (
            f"For choices {choices}, {experts} experts and a capacity of {capacity},"
        ),
        read=list_of(whole),
        expected="a list with a number of tokens for each rank",
        slips={
            "An expert takes no more than `capacity` of a rank's tokens; the others are dropped.":
                lambda choices, experts, _: right(choices, experts, 1e9),
            "The capacity holds for each rank and expert: a rank cannot know how many others send.":
                lambda choices, experts, capacity: by_rank(
                    len(choices), [min(n, capacity) for n in totals(choices, experts, 1e9)]
                ),
            "That is what each rank sends; count by where the tokens go.":
                lambda choices, _, most: [own.total() for own in taken(choices, most)],
            "That is for each expert; a rank has experts / ranks of them.": totals,
            "Experts are not dealt in turn: rank 0 has the first experts / ranks of them.":
                lambda choices, *case: [
                    sum(totals(choices, *case)[rank :: len(choices)])
                    for rank in range(len(choices))
                ],
        },
        otherwise=lambda found, choices, *_: (
            "" if len(found) == len(choices) else f"Expected {len(choices)} numbers, one per rank."
        ),
        solved="for all {cases} cases, with and without tokens that are dropped. The rank with the "
        "popular expert has most to do, and all others wait for it; a capacity bounds that.",
    )  # fmt: skip
