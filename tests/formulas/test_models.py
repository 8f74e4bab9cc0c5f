"""Models in closed form: against modules, literal numbers, and the order of their gradients."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from course.training.models import LlamaBlock
from minidist.formulas import memory, models
from minidist.formulas.compute import compute
from minidist.formulas.inputs import TrainingStep
from minidist.formulas.step import gradients_ready
from minidist.memory.state import AUTOCAST, bytes_each
from minidist.planner.hardware import H100
from minidist.planner.jobs import LARGE, MEDIUM, SMALL
from minidist.planner.sizes import Sizes
from minidist.train.gpt import GPT

MIB = 2**20


def test_a_llamas_block_has_the_parameters_of_the_module() -> None:
    with torch.device("meta"):
        block = LlamaBlock(3072, 8192, 24, 8)
    own = [each.numel() for each in block.parameters() if each.ndim > 1]
    assert sorted(own) == sorted(count for count in SMALL.block if count > 3072)


def test_a_gpts_parameters_are_those_of_the_module_in_its_order() -> None:
    with torch.device("meta"):
        net = GPT(512, 128, 3, 4, 64)
    assert models.tensors(Sizes.gpt(3, 128, 512, 64)) == [p.numel() for p in net.parameters()]


def test_tensors_are_all_parameters() -> None:
    for job in (SMALL, MEDIUM, LARGE):
        assert sum(models.tensors(job)) == job.parameters
        assert models.scale(job) == 1
        assert sum(job.block) == job.largest_unit


def test_the_small_job_has_141_buckets_and_most_are_far_above_25_mib() -> None:
    step = TrainingStep(SMALL, H100, bytes_each(AUTOCAST))
    sizes = Counter(round(size / MIB) for size in memory.bucket_bytes(step))
    assert sizes == {96: 84, 60: 28, 36: 28, 1503: 1}


def test_gradients_become_ready_from_the_head_to_the_embedding() -> None:
    """The head's share of backward is that of its operations; the tied embedding is last."""
    step = TrainingStep(SMALL, H100, bytes_each(AUTOCAST))
    seconds = gradients_ready(step, "ddp")
    made = [each / max(seconds) for each in seconds]
    head = 2 * 128_256 * 3072 * 8192
    effort = SMALL.operations + SMALL.attention * (1 / H100.attention - 1)
    assert made[-1] == pytest.approx(head / effort)
    again = gradients_ready(replace(step, checkpointing=1.0), "ddp")
    assert again[-1] == pytest.approx(seconds[-1])  # the head is not computed again
    assert again[0] == pytest.approx(seconds[0] + compute(step)[0] - seconds[-1] / 2)
    assert made[1:] == sorted(made[1:], reverse=True)
    assert made[0] == 1.0
    assert made[1] == pytest.approx(1.0)  # the first block's, with which backward ends
    blocks = [made[-2 - 9 * number] for number in range(28)]
    steps = [later - sooner for sooner, later in pairwise(blocks)]
    assert steps == pytest.approx([steps[0]] * 27)


def test_attention_and_the_head_are_among_the_operations_of_a_token() -> None:
    """Of 8 billion parameters all but the embedding's 525 million multiply, and 33 norms."""
    multiplied = 8_030_261_248 - 128_256 * 4096 - 65 * 4096
    attention = 2 * 32 * 8192 * 4096
    assert MEDIUM.operations == 8192 * (2 * multiplied + attention)
    assert MEDIUM.attention == 8192 * attention
    assert MEDIUM.head == 8192 * 2 * 128_256 * 4096
