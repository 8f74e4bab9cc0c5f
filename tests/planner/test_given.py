"""Grids that somebody has chosen: the search's own are priced as it prices them, others refused."""

from functools import partial
from typing import Any

import pytest

from minidist.formulas.inputs import Grid
from minidist.planner.given import check_grid, price
from minidist.planner.jobs import LARGE, MEDIUM
from minidist.planner.search import asked, search
from minidist.planner.sizes import Sizes
from tests.support.refusals import all_refused

MIXTURE = Sizes.mixture(12, 2048, 1024, 16, 4, 32_000, 4096, experts=16, active=2)
MEDIUM_ON_64 = asked(MEDIUM, "H100", 64, 128)
ONE_F = Grid("fsdp_kept", 16, pipeline=4, interleaved=2)


@pytest.mark.parametrize(
    ("model", "ranks", "samples"), [(MEDIUM, 64, 128), (LARGE, 2048, 256), (MIXTURE, 64, 256)]
)
def test_what_a_search_finds_is_a_grid_and_takes_as_long(
    model: Sizes, ranks: int, samples: int
) -> None:
    question = asked(model, "H100", ranks, samples)
    best = search(model, "H100", ranks, samples).best
    assert best
    for each in best:
        assert price(question, each.grid) == each


def test_a_grid_that_does_not_fit_has_a_price() -> None:
    found = price(MEDIUM_ON_64, Grid("ddp", 64))
    assert not found.forecast.fits
    assert found.seconds > 0
    check_grid(MEDIUM_ON_64, Grid("zero1", 64))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"data": 0}, "data must be at least 1, got 0"),
    ({"tensor": 1.5}, "tensor: expected a whole number, got 1.5"),
    ({"batch": True}, "batch: expected a whole number, got True"),
    ({"data": 8}, r"data \* tensor \* pipeline \* context: expected 64, .* ranks, got 32"),
    ({"batch": 3}, r"data \* batch: expected a divisor of 128 samples, got 48"),
    ({"order": "gpipe"}, "order: expected one of 1f1b, zero_bubble, dualpipe, got 'gpipe'"),
    ({"recompute": "half"}, "recompute: expected one of none, selective, full, got 'half'"),
    ({"strategy": "fsdp"}, "strategy: expected one of ddp, zero1, fsdp_kept in this grid, got"),
    ({"strategy": "single"}, "strategy: expected one of .*, got 'single'"),
    ({"expert": 3}, r"expert: expected a divisor of data \* context = 16, got 3"),
    ({"expert": 2}, "expert: expected a divisor of 1 experts, got 2"),
    ({"data": 1, "pipeline": 64, "interleaved": 1}, "pipeline: expected at most 32 ranks, one a"),
    ({"data": 4, "context": 4, "interleaved": 3}, "interleaved: expected stages that divide 32 la"),
    ({"batch": 4}, "interleaved: expected 1, since 2 micro-batches are no multiple of 4 ranks"),
    ({"order": "zero_bubble"}, "interleaved: expected 1 without a pipeline in 1f1b, got 2"),
    ({"data": 64, "pipeline": 1, "order": "dualpipe"}, "order: expected one of 1f1b, got 'dualpi"),
    (
        {"order": "dualpipe", "interleaved": 1, "batch": 2},
        "order: expected 1f1b or zero_bubble with 4 micro-batches, since dualpipe needs two",
    ),
    ({"nearer": "context"}, "nearer: expected one of data, pipeline, got 'context'"),
    (
        {"data": 4, "tensor": 4, "nearer": "pipeline"},
        "nearer: expected one of data, got 'pipeline'",
    ),
    (
        {"order": "zero_bubble", "interleaved": 1, "recompute": "full"},
        "recompute: expected none or selective with zero_bubble, got 'full'",
    ),
]


def test_bad_grids_are_refused_in_a_sentence() -> None:
    rows = [
        (partial(price, MEDIUM_ON_64, ONE_F._replace(**changes)), said) for changes, said in BAD
    ]
    odd = asked(MEDIUM, "H100", 96, 96)
    narrow = asked(Sizes.llama(8, 96, 64, 2, 2, 100, 1000), "H100", 64, 64)
    counted = MEDIUM._replace(activations_selective=0.0)
    rows += [
        (partial(price, odd, Grid("fsdp", 32, tensor=3)), "tensor: expected a divisor of the wid"),
        (partial(price, narrow, Grid("fsdp", 4, context=16)), "context: .* twice divides .* 1,000"),
        (partial(price, asked(MIXTURE, "H100", 96, 96), Grid("fsdp", 96, expert=6)), "16 experts"),
        (
            partial(price, asked(MEDIUM, "H100", 8, 8), Grid("hsdp", 8)),
            "strategy: expected one of ddp, fsdp_kept, fsdp, zero1 in this grid, got 'hsdp'",
        ),
        (
            partial(price, asked(counted, "H100", 8, 8), Grid("fsdp", 8, recompute="selective")),
            "recompute: expected none or full",
        ),
    ]
    all_refused(rows, ValueError, TypeError)
