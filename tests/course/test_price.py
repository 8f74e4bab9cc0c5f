"""Questions about prices: answers of a plan, and a sentence for what makes no sense."""

from typing import Any

import pytest

import minidist
from course.pages.price import ask
from minidist.planner.hardware import H100
from minidist.planner.jobs import MEDIUM, SMALL


@pytest.mark.parametrize(
    "strategy", ["single", "ddp", "zero1", "zero2", "fsdp_kept", "fsdp", "hsdp"]
)
@pytest.mark.parametrize(("job", "sizes", "gpus"), [("small", SMALL, 16), ("medium", MEDIUM, 64)])
def test_answers_are_those_of_a_plan(strategy: str, job: str, sizes: Any, gpus: int) -> None:
    found = minidist.plan(sizes, "H100", gpus).forecasts[strategy]
    for what in ("peak", "sent", "exposed", "tokens_per_second", "largest_batch"):
        assert ask(what, job, gpus=gpus, strategy=strategy) == getattr(found, what), what
    assert ask("step", job, gpus=gpus, strategy=strategy) == found.overlapped


def test_tensor_groups_that_fill_no_nodes_talk_in_groups_that_do() -> None:
    """Twelve ranks are three nodes of four; not sixteen ranks."""
    few, more = (ask("tensor", gpus=48, tensor=n) for n in (12, 16))
    assert few != more


def test_utilization_counts_attention_in_full_and_no_block_twice() -> None:
    for share in (0.0, 1.0):
        how: Any = {"job": "medium", "gpus": 64, "tokens": 16_384, "checkpointing": share}
        needed = ask("mfu", **how) * ask("step", **how) * H100.flops
        assert needed == pytest.approx(2 * 3 * (MEDIUM.operations + MEDIUM.attention))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"job": "tiny"}, "job: expected one of small, medium, large, got 'tiny'"),
    ({"gpus": 0}, "gpus: expected a whole number of at least 1, got 0"),
    ({"gpus": "8"}, "gpus: expected a whole number, got '8'"),
    ({"tokens": 1.5}, "tokens: expected a whole number, got 1.5"),
    ({"tokens": 12_288}, "tokens: expected a multiple of a sequence's 8192, got 12288"),
    ({"strategy": "zero3"}, "strategy: expected one of single, ddp, .*, got 'zero3'"),
    ({"tariff": "cheap"}, "tariff: expected one of line rate, published, got 'cheap'"),
    ({"tariff": "published", "gpus": 24}, "gpus: expected one of 8, 16, .* published, got 24"),
    (
        {"tariff": "published", "strategy": "hsdp", "gpus": 16},
        "tariff: expected 'line rate' for .*",
    ),
    ({"tariff": "published", "gpus": 64, "tensor": 8}, "tariff: expected 'line rate' for a split"),
    ({"policy": "fp8"}, "policy: expected one of autocast, bf16, got 'fp8'"),
    (
        {"gpu": "V100"},
        "gpu: expected one of A100, H100, H800, H200, B200, B300, GB200, GB300, got 'V100'",
    ),
    ({"checkpointing": 2}, "checkpointing: expected a share from 0 to 1, got 2"),
    ({"bucket_cap_mb": -1}, "bucket_cap_mb: expected a finite number of at least 0, got -1"),
    ({"pieces": 0}, "pieces must be at least 1, got 0"),
    ({"what": "all_reduce", "nbytes": -1e9}, "nbytes: expected a finite number of at least 0"),
    ({"what": "send"}, "nbytes: expected the bytes of a message, got None"),
    (
        {"what": "all_reduce", "over": "racks"},
        "over: expected one of ranks, .* got 'racks'",
    ),
    ({"what": "prize"}, "what: expected one of forward, .*, got 'prize'"),
    ({"tensor": 3}, "ranks: expected a multiple of tensor . pipeline = 3, got 8"),
    ({"speed": 3}, "speed: expected none but the options that `ask` names"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD, ids=[str(wrong) for wrong, _ in BAD])
def test_a_question_that_makes_no_sense_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ask(**{"what": "step"} | wrong)
