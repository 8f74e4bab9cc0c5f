"""The last milestone: a test that catches five planted faults, and tests that catch fewer."""

from pathlib import Path

import pytest

from course.project import mutation, report
from course.project.faults import BUFFER, CLIP, FAULTS, SEED, STALE, SUM, WAYS
from course.submissions.tasks import tasks_of
from tests.course.verdicts import says
from tools.work import ROOT

REFERENCE = """
import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.testing import assert_close

ROWS, STEPS, MAX_NORM = 24, 4, 0.1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()
        self.register_buffer("shift", torch.randn(5).double())

    def forward(self, x):
        return self.layers(x + self.shift)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def check(make):
    torch.manual_seed(0)
    alone = Net()
    net = copy.deepcopy(alone)
    for tensor in [*net.parameters(), *net.buffers()]:
        tensor.data += dist.get_rank()  # rank 0's must win
    trainer, optimizer = make(net, sgd), sgd(alone.parameters())
    for step in range(STEPS):
        x = torch.randn(ROWS, 5).double()
        loss = alone(x).square().mean()
        loss.backward()
        right = nn.utils.clip_grad_norm_(alone.parameters(), MAX_NORM)
        optimizer.step()
        optimizer.zero_grad()
        rows = trainer.rows(step, ROWS)
        mean = trainer.model(x[rows]).square().mean()
        norm = trainer.step(mean, MAX_NORM)
        assert_close(norm, right)
    for name, weight in trainer.weights().items():
        assert_close(weight, alone.get_parameter(name).detach())
"""
NORM = "        assert_close(norm, right)\n"
WEIGHTS = REFERENCE[REFERENCE.index("    for name, weight") :]
FIRST_LOSS = """
    trainer, x = make(net, sgd), torch.randn(ROWS, 5).double()
    mean = trainer.model(x[trainer.rows(0, ROWS)]).square().mean().detach() / dist.get_world_size()
    dist.all_reduce(mean)
    assert_close(mean, alone(x).square().mean().detach())
"""
AGREE = """
    for name, weight in trainer.weights().items():
        first = weight.clone()
        dist.broadcast(first, 0)
        assert_close(weight, first)
"""


def reference(*changes: tuple[str, str]) -> str:
    """The reference with some of its text replaced."""
    text = REFERENCE
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def hand_in(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "__init__.py").touch()
    (folder / "mine" / "checks.py").write_text(text)
    monkeypatch.syspath_prepend(folder)


def test_the_reference_passes_what_is_right_and_catches_every_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, REFERENCE, monkeypatch)
    verdict, scores, last = report.lines("mine", "checks")
    assert verdict.startswith("checks: Correct. It passes DDP, ZeRO, FSDP on 2 and 3 ranks, and ")
    assert verdict.endswith("every planted fault: DDP 5 of 5, ZeRO 5 of 5, FSDP 5 of 5.")
    *rows, total = scores.strip().splitlines()[2:]
    assert [row.split(":")[0] for row in rows] == [f"| {fault}" for fault in FAULTS]
    assert total == "|  | 5 of 5 | 5 of 5 | 5 of 5 |"
    assert last.startswith("1 of 1. All that was graded is right.")


MISSES = {
    "the first loss alone": (REFERENCE.split("    trainer, optim")[0] + FIRST_LOSS,
                             {SUM, STALE, CLIP}),
    "whether the ranks agree": (reference((NORM, ""), (WEIGHTS, AGREE)),
                                {SUM, STALE, SEED, BUFFER}),
    "one buffer on all ranks": (reference(("*net.buffers()]", "]")), {BUFFER}),
    "no clipping": (reference(("MAX_NORM = 24, 4, 0.1", "MAX_NORM = 24, 4, 1e9"), (NORM, "")),
                    {CLIP}),
    "clipping hides the scale": (reference((NORM, "")), {SUM}),
    "AdamW hides the scale": (
        reference((NORM, ""), ("SGD(parameters, lr=0.1)", "AdamW(parameters)"),
                  ("24, 4, 0.1", "24, 4, 1e9")).replace(".double()", ""), {SUM, CLIP}),
    "rows all alike": (reference(("torch.randn(ROWS, 5)", "torch.ones(ROWS, 5)")), {SEED, CLIP}),
    "rows of its own": (
        reference(("trainer.rows(step, ROWS)", "torch.arange(ROWS)[dist.get_rank() :: 3]")),
        {SEED}),
    "a loss that falls": (REFERENCE.replace(NORM, "").replace(WEIGHTS, "    assert mean < 99\n"),
                          {*FAULTS}),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISSES)
def test_a_test_that_looks_at_less_catches_less(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, missed = MISSES[kind]
    monkeypatch.setattr(mutation, "RIGHT_RANKS", (3,))
    monkeypatch.setattr(mutation, "WAYS", {"DDP": WAYS["DDP"]})
    hand_in(tmp_path, text, monkeypatch)
    verdict = report.grade("checks")
    caught = mutation.boards.get("mine", {})
    assert {fault for fault, way in caught if not caught[fault, way]} == missed, verdict
    assert verdict.status == "wrong"
    if len(missed) < len(FAULTS):
        assert f"catches DDP {5 - len(missed)} of 5." in verdict.text
        assert all(f"Missed under DDP: {fault}. {FAULTS[fault].hint}" in verdict.text
                   for fault in missed)  # fmt: skip


CALLED = "\n\n\nreally = check\n\n\ndef check(make):\n"
HANGS = f"{REFERENCE}{CALLED}    while True:\n        pass\n"
WRONG = {
    "always fails": (
        "def check(make):\n    assert False, 'never'\n",
        r"must pass a right DDP.*On 2 real .* raised AssertionError: never \(checks.py, line 2",
    ),
    "asks for equal bits": (
        f"{REFERENCE.replace('assert_close(weight, ', 'assert torch.equal(weight, ')}",
        "must pass a right DDP.* On 2 real processes ranks? .* raised AssertionError",
    ),
    "two ranks": (
        reference(("trainer.rows(step, ROWS)", "torch.arange(ROWS)[dist.get_rank() :: 2]")),
        "must pass a right DDP, and does not. On 3 real processes",
    ),
    "rows that three do not divide": (
        reference(("ROWS, STEPS, MAX_NORM = 24", "ROWS, STEPS, MAX_NORM = 32")),
        "right DDP.*32 rows are not a multiple of 3 ranks",
    ),
    "an error of its own": (
        "class Differs(AssertionError):\n    pass\n\n\ndef check(make):\n    raise Differs('so')\n",
        r"right DDP.*raised AssertionError: so \(checks.py, line 6, in check\)",
    ),
    "never fails": ("def check(make):\n    return 'fine'\n", "fails on none of 5 planted faults"),
    "catches everything": (
        f"{REFERENCE}{CALLED}    try:\n        really(make)\n    except:\n        pass\n",
        "fails on none of 5 planted faults. It fails by raising AssertionError",
    ),
    "raises another error": (
        f"{REFERENCE}{CALLED}    try:\n        really(make)\n"
        "    except AssertionError:\n        raise ValueError('found it')\n",
        "under DDP with no division your test does not end with an AssertionError.*found it",
    ),
    "weights on rank 0": (
        REFERENCE.replace("    for name, weight", "    if dist.get_rank():\n        return\n"
                          "    for name, weight"),
        "a right FSDP, and does not.*the same calls, in the same order",
    ),
    "hangs": (HANGS, r"right DDP.*did not end within 4 s.*\(checks.py, line \d+, in check\)"),
    "exits": ("import os\n\n\ndef check(make):\n    os._exit(0)\n", "right DDP.*exit code 0"),
    "syntax": ("def check(make:\n", r"^in checks.py, line 1: SyntaxError: '\(' was never closed"),
    "no argument": ("def check():\n    pass\n", "right DDP.*raised TypeError: check.. takes 0"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_test_is_told_so(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, diagnosis = WRONG[kind]
    monkeypatch.setattr(mutation, "TIMEOUT", 4 if text is HANGS else mutation.TIMEOUT)
    if "on none" in diagnosis:  # they pass every way, so one will do
        monkeypatch.setattr(mutation, "WAYS", {"DDP": WAYS["DDP"]})
    hand_in(tmp_path, text, monkeypatch)
    says(diagnosis, report.grade("checks"))


def test_the_stub_is_no_mistake_yet_and_a_class_has_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path, (ROOT / "lib/course/project/stub.py").read_text(), monkeypatch)
    verdict, last = report.lines("mine", "checks")
    assert verdict.startswith("checks: Not yet. In mine/checks.py, line ")
    assert "mine/checks.py write check; then run `make grade` again" in last
    assert "project: checks" in tasks_of(tmp_path)
