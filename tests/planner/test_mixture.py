"""A mixture of experts in closed form: its parameters, what a token computes, and bad input."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from course.training.models import LlamaBlock
from minidist.planner.sizes import Sizes, check_sizes
from tests.support.refusals import all_refused

SHAPE: dict[str, int] = {
    "layers": 3, "width": 64, "hidden": 32, "heads": 4, "kv_heads": 2, "vocabulary": 100,
    "context": 16,
}  # fmt: skip


def of(experts: int = 8, active: int = 2, beside: int = 0, **changes: Any) -> Sizes:
    shape: dict[str, Any] = SHAPE | changes
    return Sizes.mixture(**shape, experts=experts, active=active, beside=beside)


def test_a_block_has_the_parameters_of_a_llamas_with_experts_in_place_of_its_second_half() -> None:
    with torch.device("meta"):
        block = LlamaBlock(64, 32, 4, 2)
        router, shared = nn.Linear(64, 8, bias=False), nn.Linear(64, 3 * 48, bias=False)
    matrices = [each.numel() for each in block.parameters() if each.ndim > 1]
    expert = 3 * 64 * 32
    apart = router.weight.numel() + shared.weight.numel()
    sizes = of(beside=48)
    assert sizes.largest_unit == sum(sizes.block)
    assert sizes.largest_unit == sum(matrices) + 2 * 64 + 7 * expert + apart  # with norms
    assert sizes.parameters == 3 * sizes.largest_unit + 2 * 100 * 64 + 64
    assert sizes.experts == 3 * 8 * expert
    assert sizes.block[-8:] == (expert,) * 8
    check_sizes(sizes)


def test_a_token_computes_with_its_experts_alone() -> None:
    sizes = of(beside=48)
    others = 3 * 6 * 3 * 64 * 32  # experts that it does not go to
    multiplied = sizes.parameters - others - 100 * 64 - 7 * 64  # nor embedding, nor norms
    assert sizes.operations == 16 * 2 * multiplied + sizes.attention
    assert sizes.routed == 16 * 3 * 2 * 64
    assert of(experts=16).operations - of().operations == 16 * 3 * 2 * 64 * 8  # the router's


def test_one_expert_that_all_tokens_go_to_is_a_llamas_half_and_a_router() -> None:
    one, llama = of(experts=1, active=1), Sizes.llama(*SHAPE.values())
    assert one.parameters == llama.parameters + 3 * 64
    assert one.activations == llama.activations + 16 * 3 * 2 * 64  # sent, and come back


def test_bad_input_names_the_argument() -> None:
    all_refused(
        [
            (partial(of, active=9), "active: expected at most the 8 experts, got 9"),
            (partial(of, active=0), "active must be at least 1, got 0"),
            (partial(of, experts=0), "experts must be at least 1, got 0"),
            (partial(of, beside=-1), "beside must be at least 0, got -1"),
            (partial(of, layers=0), "layers must be at least 1, got 0"),
            (partial(of, hidden=1.5), "hidden: expected a whole number, got 1.5"),
        ],
        ValueError,
        TypeError,
    )
    with pytest.raises(TypeError, match="positional"):
        Sizes.mixture(3, 64, 32, 4, 2, 100, 16, 8)  # type: ignore[misc, call-arg]
