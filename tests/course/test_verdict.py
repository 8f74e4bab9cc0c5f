"""What all graders share: numbers of any type, a process that can be killed, forbidden calls."""

import os
import re
import subprocess
import sys
import threading
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import all_reduce

import minidist
from course.ask import verdict as shared
from course.ask.forbidden import without_torch
from course.ask.verdict import Wrong, on_ranks
from tests.course.verdicts import refuses
from tests.support.processes import living


@shared.formula
def doubled(function: Any) -> str:
    """Grade function(n), the double of a number."""
    for n in (0, 3):
        if (found := shared.ask_as(shared.number, "a number", function, n)) != 2 * n:
            raise shared.Wrong(f"{found:g} of {n}")
    return "two numbers."


def test_the_line_that_raised_is_named() -> None:
    def fails(n: int) -> float:
        return sum(1 / each for each in range(n))

    line = fails.__code__.co_firstlineno + 1
    told = doubled(lambda n: 2 * n if n == 0 else fails(n)).text
    assert told == f"for (3,) it raised ZeroDivisionError in line {line}: division by zero."


def test_of_a_message_that_fills_a_book_both_ends_are_shown() -> None:
    def fails(n: int) -> None:
        raise ValueError("x" * 10**7)

    told = str(doubled(fails))
    assert told.startswith("Wrong. For (0,) it raised ValueError in line")
    assert "characters left out" in told
    assert len(told) < 5000


@pytest.mark.parametrize(
    "kind", [int, float, np.int64, np.float32, torch.tensor, np.array, Fraction]
)
def test_a_right_number_of_any_type_is_right(kind: Any) -> None:
    assert doubled(lambda n: kind(2 * n))


def spins(n: int) -> int:
    while True:
        n += 1


def spins_behind_an_except(n: int) -> None:
    while True:
        try:
            spins(n)
        except BaseException:
            continue


def prints_much(n: int) -> int:
    print("much " * 100_000)
    return n


def unpicklable() -> Any:
    lock = threading.Lock()
    return lambda n: 2 * n if lock else 0


def leaves(how: Any) -> Any:
    """A function that leaves the process, or something in it."""
    return lambda n: (how(), 2 * n)[1]


SHARED: list[tuple[Any, str]] = [
    (spins, r"for \(0,\) it does not come to an end"),
    (spins_behind_an_except, "the process that runs your function did not end within"),
    (leaves(sys.exit), "the process that runs your function raised SystemExit"),
    (leaves(lambda: os._exit(3)), "your function left with exit code 3"),
    (lambda n: n == 0, r"for \(0,\) you return True; expected a number"),
    (lambda n: torch.zeros(1), "expected a number"),
    (lambda n: torch.tensor(n == 0), r"return tensor\(True\); expected a number"),
    (lambda n: float("nan"), "expected a number"),
    (unpicklable(), "cannot be sent to another process"),
    (prints_much, "3 of 3"),
    (lambda n: 1 / 0, "raised ZeroDivision"),
]


@pytest.mark.parametrize(("answer", "diagnosis"), SHARED)
def test_whatever_a_function_does_it_gets_a_verdict(
    answer: Any,
    diagnosis: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(shared, "LIMIT", 1.0)
    monkeypatch.setattr(shared, "GRACE", 1.0)
    refuses(doubled, (answer,), diagnosis)
    assert len(capsys.readouterr().out) < 2 * shared.PRINTED


def test_nothing_is_left_of_what_a_function_starts(tmp_path: Path) -> None:
    def starts(n: int) -> int:
        process = subprocess.Popen(["sleep", "1000"])
        (tmp_path / f"{n}").write_text(str(process.pid))
        threading.Thread(target=spins, args=(0,), daemon=True).start()
        return 2 * n

    before = threading.active_count()
    assert doubled(starts)
    assert threading.active_count() == before
    assert living(int(path.read_text()) for path in tmp_path.iterdir()) == set()


def test_torch_s_own_collectives_are_refused_however_they_are_called() -> None:
    def work() -> str:
        try:
            with without_torch("`exchange`"):
                for call in (all_reduce, dist.all_reduce):
                    with suppress(Wrong):
                        call(torch.ones(1))
        except Wrong as wrong:
            return str(wrong)
        return ""

    said = "your function calls torch.distributed's all_reduce. Use `exchange` and nothing else."
    assert on_ranks(work, 2) == [said] * 2


@pytest.mark.parametrize(
    ("calls", "does"),
    [
        ([], "is busy"),
        (["get_rank", "WORLD"], "is busy"),
        (["wrapper", "all_reduce"], "waits for others"),
    ],
)
def test_where_ranks_hang_apart_each_line_is_named(
    calls: list[str], does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torchs, own = 'File "torch/distributed/distributed_c10d.py"', '  File "my.ipynb", line'
    stood = "".join(f"  {torchs}, line 9, in {call}\n" for call in calls)
    details = f"Where rank 0 stood:\n  {torchs}, line 9, in barrier\n"
    details += f"\nWhere rank 1 stood:\n{own} 4, in mine\n{stood}"
    short = "ranks 0, 1 did not end within 9 s\n\n"
    short += f'rank 1:\n{own} 4, in mine\nrank 0:\n  File "/lib/course/ask.py", line 2, in ask'

    def launch(*_: object, **__: object) -> None:
        raise minidist.RankError(short, [0, 1], details)

    monkeypatch.setattr(minidist, "launch", launch)
    told = f": rank 1 {does} (my.ipynb, line 4, in mine); rank 0 waits for others outside of your"
    with pytest.raises(Wrong, match=re.escape(told)):
        on_ranks(launch, 2)
