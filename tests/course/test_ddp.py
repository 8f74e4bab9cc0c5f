"""The lab in which one builds DDP: mistakes get a diagnosis. And prices of DDP and of scaling."""

from dataclasses import replace

import pytest
import torch

from course.pages.price import ask, step_of
from course.timing.backward import WAYS, by_way
from minidist.formulas.compute import rate
from minidist.formulas.memory import bucket_bytes
from minidist.formulas.step import tokens_to_hide
from minidist.planner.hardware import H100
from minidist.planner.jobs import SHAPES, SMALL
from minidist.planner.sizes import Sizes
from tests.course.verdicts import diagnosed

test_each_answer_is_judged = diagnosed("ddp")


# ---- prices of the chapters on DDP and on scaling ----


@pytest.mark.parametrize(
    ("gpus", "waits", "published"),
    [
        (8, (61.1, 50.0, 57.8, 6.5), 6.5),
        (16, (89.9, 60.4, 84.9, 8.0), 6.9),
        (32, (110.5, 62.6, 102.7, 8.6), 9.0),
        (64, (127.9, 64.1, 120.7, 9.5), 11.2),
    ],
)
def test_what_the_optimizer_waits_for(
    gpus: int, waits: tuple[float, ...], published: float
) -> None:
    """The table, and the slider that starts at 16 GPUs: one price for both."""
    step = step_of("small", gpus, 4096)
    for way, wanted in zip(WAYS, waits, strict=True):
        assert 1e3 * by_way(step, way)["exposed"] == pytest.approx(wanted, abs=0.051)
    asked = ask("exposed", gpus=gpus, tokens=4096)
    assert by_way(step, "overlapped")["exposed"] == pytest.approx(asked, rel=1e-9)
    seen = ask("exposed", gpus=gpus, tokens=4096, tariff="published")
    assert 1e3 * seen == pytest.approx(published, abs=0.051)
    assert 1e3 * ask("backward", gpus=gpus, tokens=4096) == pytest.approx(147.6, abs=0.05)


def test_the_last_bucket_is_the_embedding_tied_or_not() -> None:
    tied = step_of("small", 64, 4096)
    *shape, _ = SHAPES["small"]
    untied = replace(tied, sizes=Sizes.llama(*shape, 4096, tied=False))
    waited = [by_way(step, "overlapped")["exposed"] for step in (tied, untied)]
    assert waited[0] == pytest.approx(waited[1])
    last = bucket_bytes(tied)[-1]
    assert last == 4 * 128_256 * 3072
    assert 0.9 < ask("all_reduce", gpus=64, nbytes=last) / waited[0] < 1


def test_the_small_job_stands_on_a_knife_edge() -> None:
    for tariff, wanted in (("line rate", (9.5, 63.1)), ("published", (11.2, 66.0))):
        for tokens, ms in zip((4096, 2048), wanted, strict=True):
            waited = 1e3 * ask("exposed", gpus=64, tokens=tokens, tariff=tariff)
            assert waited == pytest.approx(ms, abs=0.05)


def test_sums_in_bf16_round_at_each_addition() -> None:
    """Gaussian gradients whose mean is as large as their deviation, one rank after the other."""
    off = []
    for ranks in (8, 64, 1024):
        own = torch.randn(ranks, 2000, generator=torch.Generator().manual_seed(0)) + 1
        total = own[0].bfloat16()
        for each in own[1:]:
            total = total + each.bfloat16()
        exact = own.bfloat16().double().sum(0)
        off.append(float((total.double() - exact).norm() / exact.norm()))
    assert [round(100 * each, 1) for each in off[:2]] == pytest.approx([0.3, 0.8], abs=0.05)
    assert 0.17 < off[2] < 0.20


def test_tokens_that_hide_the_network_by_bytes_by_nccl_and_as_published() -> None:
    speed = rate(H100, SMALL.width)
    assert round(tokens_to_hide(8, 4, speed, 400e9, 0, 1)) == 2342
    sizes = sorted(bucket_bytes(step_of("small", 64, 4096)))
    bucket = sizes[len(sizes) // 2]
    assert bucket == 4 * 3072 * 8192, "96 MiB"
    for tariff, wanted in (("line rate", 4457), ("published", 4378)):
        took = ask("all_reduce", gpus=64, nbytes=bucket, tariff=tariff)
        assert round(tokens_to_hide(0, 4, speed, 1, took, bucket / 4)) == wanted
        assert took * speed / bucket == pytest.approx(wanted, abs=1), "4 operations, 4 bytes"


def test_strong_and_weak_scaling_and_the_days() -> None:
    """In sequences of 256 tokens, as the chapter and its slider have them."""

    def step(tokens: int, gpus: int) -> float:
        return ask("step", gpus=gpus, tokens=tokens, sequence=256)

    ranks, alone = (8, 64, 256, 1024), step(2**18, 1)
    strong = [alone / n / step(2**18 // n, n) for n in ranks]
    weak = [step(4096, 1) / step(4096, n) for n in ranks]
    assert [round(each, 2) for each in strong] == [0.98, 0.78, 0.24, 0.06]
    assert [round(each, 2) for each in weak] == [0.97, 0.91, 0.85, 0.83]
    assert [round(n * each) for n, each in zip(ranks, strong, strict=True)] == [8, 50, 61, 64]
    days = [1e12 / (n * t) * step(t, n) / 86_400 for t, n in ((4096, 64), (1024, 256), (4096, 256))]
    assert [round(each, 1) for each in days] == [9.7, 8.0, 2.6]
