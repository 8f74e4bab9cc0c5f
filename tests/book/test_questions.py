"""The forty short questions: each has its answer, and each answer is found in a second way."""

import math
import re
import struct
from collections.abc import Iterator
from itertools import count, product
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from course.pages.teaching import COURSE
from tools import handout
from tools.work import ROOT

FILE = ROOT / "book" / "questions.md"
PAGE = FILE.read_text()
ITEM = re.compile(r"^(\d+)\. (.+)", re.MULTILINE)
CELL = re.compile(r"```\{code-cell\} ipython3\n:tags: [^\n]+\n(.*?)```", re.DOTALL)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^:::\{{{kind}\}}.*?^:::$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, Any]]:
    """What the page's cells say."""
    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course.pages.say.glue", lambda name, value, **_: found.update({name: value}))
        names: dict[str, Any] = {}
        for cell in CELL.findall(PAGE):
            exec(cell, names)
        yield found


def test_forty_questions_have_an_answer_each_and_every_answer_is_computed(
    said: dict[str, Any],
) -> None:
    asked, answered = ("\n".join(blocks(kind)) for kind in ("exercise", "solution"))
    numbers = [int(number) for number, _ in ITEM.findall(asked)]
    assert numbers == [*range(1, 41)]
    assert numbers == [int(number) for number, _ in ITEM.findall(answered)]
    for _, text in ITEM.findall(asked):
        assert re.fullmatch(r"([^?.]|\.(?! ))+([.?] ([^?.]|\.(?! ))+)?\?", text), "two sentences"
    assert all("{glue:text}" in text for _, text in ITEM.findall(answered))
    assert "{glue:text}" not in asked
    quoted = dict(re.findall(r"\{glue:text\}`(\w+):([^`]*)`", answered))
    assert {*quoted} == {*said}
    assert all(format(said[name], form) for name, form in quoted.items())


def test_the_parts_name_their_chapters() -> None:
    lines = "\n".join(re.findall("^From .+", PAGE, re.MULTILINE))
    named = re.findall(r"\]\((\w+)\.md\)", lines)
    assert len({*named}) == len(named)
    assert {*COURSE} - {*named} == {"why", "which", "beyond", "gpus"}, "these have no question"


def test_a_handout_has_the_questions_and_not_one_answer() -> None:
    given = handout.without_solutions(FILE).decode()
    assert [text for text in blocks("exercise") if text not in given] == []
    assert "glue" not in given
    assert "say(" not in given
    assert "{solution}" not in given
    viva = ROOT / "book" / "teaching.md"
    for words in ("what answers are worth", "calls are matched by place"):
        assert words in viva.read_text()
        assert words not in handout.without_solutions(viva).decode()
    assert "Be my tutor" in handout.without_solutions(viva).decode()


# ---- the answers once more: by arithmetic, by another simulation, by PyTorch ----


def waits_in_line(takes: float) -> float:
    """What is left of four all-reduces after backward's 60 ms, if each waits for the last."""
    end = 0.0
    for full in (15, 30, 45, 60):
        end = max(end, full) + takes
    return end - 60


def gathered_ahead(gather: float) -> float:
    """Forward through ten units of 5 ms: a unit travels from when the one before it computes."""
    link = started = done = 0.0
    for _ in range(10):
        link = max(link, started) + gather
        started = max(done, link)
        done = started + 5
    return done


def in_bf16(number: float) -> float:
    """The number rounded to eight significant bits, ties to even."""
    fraction, exponent = math.frexp(number)
    return math.ldexp(round(fraction * 2**8), exponent - 8)


def sum_of_bits(*numbers: float) -> int:
    return sum(struct.unpack("<i", struct.pack("<f", number))[0] for number in numbers)


def causal_pairs(pieces: tuple[int, int]) -> int:
    return sum(key <= query for query, key in product(pieces, range(16)))


def collectives() -> dict[str, Any]:
    chunks, total = [2, 2, 2, 1, 1, 1, 1], 0.0
    for _ in range(512):
        total = in_bf16(total + 1)
    return {
        "reducers": next(n for n in count(2) if 2 * (n - 1) >= 10 * 4 * (n - 1) / n),
        "gathered": 800 * 7 / 8,
        "rows_all": 2 * 3 / 4,
        "rows_scattered": 2 * 3 / 4 / 8,
        "uneven": max(20 - chunks[r] - chunks[(r + 1) % 7] for r in range(7)),
        "equal_mb": 64 * 20e-6 * 50e9 / 1e6,
        "steps_ratio": 2 * 63 / 6,
        "bf16_sum": total,
    }


def data_parallel() -> dict[str, Any]:
    layers = [torch.empty(10 << 20, dtype=torch.uint8, device="meta") for _ in range(6)]
    buckets, _ = dist._compute_bucket_assignment_by_size(layers, [1 << 20, 25 << 20])
    spread = (9 - 3) / (1 / 64 - 1 / 512)
    return {
        "uneven_off": 100 * ((2 + 5 + 11) / 3 / ((6 * 2 + 5 + 11) / 8) - 1),
        "buckets": len(buckets),
        "exposed": waits_in_line(20),
        "twice": 32 * math.ceil(1000 / 32) - 1000,
        "noise_scale": spread / (3 - spread / 512),
        "tokens_ddp": 8 / 100e9 * 400e12 / 4,  # as long as the bytes travel
        "tokens_fsdp": max(2 / 100e9 * 400e12 / 2, 6 / 100e9 * 400e12 / 4),
    }


def sharded() -> dict[str, Any]:
    return {
        "frozen": 3 / 4 * 4 + 1 / 4 * 16,
        "largest": 0.9 * 80 * 2**30 / 24 / 1e9,
        "stage_1": next(n for n in count(1) if 8 + 8 / n < 9),
        "padding": -11 % 4,
        "on_two": "2 and 3",
        "nodes": next(n for n in count(1) if 16 * 8.030e9 / (8 * n) < 2 * 2 * 218.1e6),
        "forward": gathered_ahead(8),
        "state_fsdp": 16 * 8.030 / 64,
        "state_hsdp": 16 * 8.030 / 8,
    }


def beyond() -> dict[str, Any]:
    velocity, weights = 0.0, np.exp([0, math.log(3)])
    for _ in range(200):
        velocity = 0.8 * velocity + 1
    return {
        "micro_1f1b": next(m for m in count(1) if 7 / (m + 7) <= 0.1),
        "held_1f1b": 6 - 2,
        "step_1f1b": 3 * (16 + 7),
        "step_zero": 3 * 16 + 7,
        "query_columns": 32 * 128 / 8,
        "key_columns": 8 * 128 / 8,
        "tensor_mb": 16 * 8192 * 4096 * 3 / 4 / 1e6,
        "zigzag": max(causal_pairs((r, 15 - r)) for r in range(8)),
        "in_order": max(causal_pairs((2 * r, 2 * r + 1)) for r in range(8)),
        "merged": float(weights @ [1, 5] / weights.sum()),
        "copies": 1000 * 2 * 3 / 4,
        "balance_loss": 8 * (1 * 1 + 7 * 0 * 0),
        "round_steps": math.ceil(12 / (0.1 * 0.8)),
        "outer_step": 0.5 * (0.8 * velocity + 1),
    }


def in_earnest() -> dict[str, Any]:
    def lost(stops: float, every: float) -> float:
        return stops / every + every / 2 / (20 * 3600)

    often, seldom = (
        min(range(1, 20_000), key=lambda each: lost(stops, each)) for stops in (30 / 9, 30)
    )
    same = sum_of_bits(0.5, -0.25) == sum_of_bits(-0.5, 0.25)
    return {
        "clipped_apart": "(0.5, 0.5)",
        "clipped_mean": f"({1.5 / 2.5:.1f}, {2 / 2.5:.1f})",
        "pads": "5",
        "sign_flip": "stays" if same else "changes",
        "interval": seldom / 60,
        "interval_ninth": often / 60,
        "overlapped": 900,
        "replicas": 16_384 / (8 * 16 * 2),
        "sharders": 16_384 / (8 * 16),
        "bubble_tokens": 3 / 4 * 8192 / (8 * 1 * 2),
        "wider": 2048 / 4096,
    }


def test_each_answer_is_the_same_in_a_second_way(said: dict[str, Any]) -> None:
    other = collectives() | data_parallel() | sharded() | beyond() | in_earnest()
    assert {*other} == {*said}
    offenders = [
        f"{name}: the page says {said[name]}, the other way {value}"
        for name, value in other.items()
        if (said[name] != value if isinstance(value, str) else not near(said[name], value))
    ]
    assert not offenders, "\n".join(offenders)


def near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=2e-3)
