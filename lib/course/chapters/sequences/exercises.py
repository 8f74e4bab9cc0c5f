"""Grader of the lab on ring attention: merging."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from course.ask.averages import off
from course.ask.verdict import Wrong, ask_as, formula


def _drawn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


Pair = tuple[Tensor, Tensor]


def _attention(scores: Tensor, values: Tensor) -> Pair:
    if not values.shape[-2]:
        empty = torch.zeros(*scores.shape[:-1], values.shape[-1]).double()
        return empty, torch.full((*scores.shape[:-1], 1), -torch.inf).double()
    return scores.softmax(-1) @ values, scores.logsumexp(-1, keepdim=True)


EXPECTED = "out and lse, two tensors"
MERGES = {  # scale of the scores, and where the keys are cut
    "two pieces of four keys": (1.0, (4,)),
    "pieces of one key and of seven": (1.0, (1,)),
    "three pieces, one after the other": (3.0, (2, 5)),
    "scores of up to some thousand": (1000.0, (3,)),
    "a piece that no query sees": (1.0, (0,)),
    "a second piece that no query sees": (1.0, (8,)),
}


@formula
def merge(function: Callable[[Tensor, Tensor, Tensor, Tensor], Pair]) -> str:
    """Grade function(out, lse, more, more_lse): attention to two pieces of keys, made of each's."""
    for name, (scale, cuts) in MERGES.items():
        scores, values = scale * _drawn(71, 2, 5, 8), _drawn(72, 2, 8, 3)
        edges = [0, *cuts, 8]
        blocks = [
            _attention(scores[..., start:end], values[..., start:end, :])
            for start, end in pairwise(edges)
        ]
        merged, seen = blocks[0], edges[1]
        for block, end in zip(blocks[1:], edges[2:], strict=True):
            given = [each.clone() for each in (*merged, *block)]
            found = ask_as(_pair, EXPECTED, function, *given, case=f"for {name} ")
            if not all(map(torch.equal, given, (*merged, *block))):
                raise Wrong(f"for {name}: what you are given is changed; make new tensors.")
            right = _attention(scores[..., :end], values[..., :end, :])
            if why := _why_merge(found, right, merged, block, (seen, end - seen)):
                raise Wrong(f"for {name}: {why}")
            merged, seen = found, end
    return (
        f"for {len(MERGES)} cases: the merged attention is softmax over all keys, even with scores "
        "of several thousand and with a piece of which nothing is seen. Because lse is merged too, "
        "any number of pieces can follow, in any order."
    )


def _pair(answer: Any) -> Pair:
    out, lse = answer
    if not (isinstance(out, Tensor) and isinstance(lse, Tensor)):
        raise TypeError
    return out, lse


def _why_merge(found: Pair, right: Pair, one: Pair, other: Pair, keys: tuple[int, int]) -> str:
    for name, each in zip(("out", "lse"), found, strict=True):
        if not each.isfinite().all():
            return (
                f"{name} is not finite. exp overflows from about 700 on, and there may be nothing "
                "in a piece: take the exponential of differences from the merged lse."
            )
    a, b, share = one[0], other[0], (one[1] - right[1]).exp()
    return off("out", found[0], right[0], {
        "is the mean of both. A piece whose scores are larger counts more.": (a + b) / 2,
        "is the sum of both: the two weights must add up to 1.": a + b,
        "is weighted by the numbers of keys; weigh by the sums of their exponentials, exp(lse).":
            (keys[0] * a + keys[1] * b) / sum(keys),
        "has the two weights swapped.": (1 - share) * a + share * b,
    }, "is not softmax over all keys.") or off("out is right, but lse", found[1], right[1], {
        "is the larger of both. It is log(exp(a) + exp(b)).": torch.maximum(one[1], other[1]),
    }, "is not that of all keys, log(exp(a) + exp(b)): a third piece would be merged "
    "wrongly.")  # fmt: skip
