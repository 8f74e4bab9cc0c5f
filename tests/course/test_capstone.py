"""The capstone: its clock, and its grader on logs of right and wrong runs.

The runs are real, and short: `whole` goes on with the losses of one process, which are theirs too.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minidist
from course.capstone import stub, task
from course.capstone.cluster import LINKS, Clock
from course.capstone.run import METERED, Line
from course.graders import capstone as grade
from minidist.memory.state import FP32
from tests.course.verdicts import says
from tests.support.by_hand import capstone as hand

STEPS = 34
Logs = dict[str, list[Line]]
Change = Callable[[list[Line]], list[Line]]


@pytest.fixture(scope="module")
def losses() -> list[float]:
    """Those of one process; on another processor the last ones may differ by some hundredths."""
    return task.alone(STEPS)


@pytest.fixture(scope="module")
def logs(losses: list[float]) -> Logs:
    """The whole log of each run by hand; the ranks' checks of each call are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDIST_CHECK", "0")
        found = minidist.launch(hand.logs, task.RANKS, timeout=200)
    assert all(each == found[0] for each in found)
    return {name: whole(log, losses) for name, log in found[0].items()}


def whole(log: list[Line], losses: list[float]) -> list[Line]:
    """A log of all steps: those that were made, and the last one again and again."""
    head, *lines = json.loads(json.dumps(log))  # tuples become lists, as in a file
    for step in range(len(lines), STEPS):
        held = lines[-1]["held"] or ([0] * task.RANKS if step == METERED else None)
        loss = [losses[step]] * task.RANKS
        lines.append(lines[-1] | {"step": step, "loss": loss, "held": held})
    return [head | {"steps": STEPS}, *lines]


def write(log: list[Line], where: Path) -> Path:
    """The log as a file."""
    path = where / "run.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in log))
    return path


def forecast(strategy: str = "hsdp", **changes: Any) -> dict[str, Any]:
    """What `minidist.plan` says of a strategy, but for changes."""
    batch = task.ROWS // task.RANKS
    how = {"batch": batch, "policy": FP32, "foreach": False}
    plan = minidist.plan(task.sizes(), task.MACHINE, task.RANKS, **how)
    found = plan.forecasts[strategy]
    return {"held": found.peak, "sent": found.sent, "seconds": found.overlapped} | changes


@pytest.mark.parametrize("name", ["hsdp", "from scratch", "kept"])
def test_different_right_answers_are_right(
    name: str, logs: Logs, losses: list[float], tmp_path: Path
) -> None:
    least = forecast("zero2") | {"held": 8.4e6, "seconds": 0.2} if name == "kept" else forecast()
    verdict = grade.capstone(write(logs[name], tmp_path), least)
    assert verdict, verdict
    reached = sum(losses[-task.WINDOW :]) / task.WINDOW
    assert f"34 steps to a loss of {reached:.2f}, with" in verdict.text


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hsdp"])
def test_what_the_plan_says_is_what_a_run_takes(name: str, logs: Logs) -> None:
    found, right = grade.measured(logs[name][1:]), forecast(name)
    assert found["sent"] == pytest.approx(right["sent"], rel=1e-3)
    assert found["seconds"] == pytest.approx(right["seconds"], rel=0.06)
    within = 0.12 if name == "ddp" else 0.08  # ours keeps gradients beside its buckets
    assert found["held"] == pytest.approx(right["held"], rel=within)


def test_no_log_and_no_forecast_are_no_mistakes_yet(tmp_path: Path) -> None:
    none = tmp_path / "none.jsonl"
    assert str(grade.capstone(none, forecast())) == "Not yet. There is no none.jsonl yet: run it."
    assert str(grade.capstone(none, forecast(held=None))) == "Not yet. First write your forecast."


def test_the_stub_is_what_a_run_needs_and_short() -> None:
    assert len(Path(stub.__file__).read_text().splitlines()) <= 40
    with pytest.raises(NotImplementedError):
        stub.Run(task.model(), None)  # type: ignore[arg-type]


def test_the_clock_lets_a_link_work_while_the_rank_computes() -> None:
    clock = Clock()
    first = clock.carry(["between"], 3.0)
    second = clock.carry(["inside", "between"], 1.0)  # waits for the link
    third = clock.carry(["inside"], 1.0)  # and is waited for
    clock.compute(2.0)
    assert (first, second, third, clock.now) == (3.0, 4.0, 5.0, 2.0)
    assert clock.carry(["other"], 1.0) == 3.0
    assert LINKS["between"].beta > 10 * LINKS["inside"].beta


# ---- wrong answers ----


def steps(change: Callable[[Line], Line]) -> Change:
    """Change each step of a log."""
    return lambda log: [log[0], *map(change, log[1:])]


def as_it_is(log: list[Line]) -> list[Line]:
    return log


def of_two_ranks(line: Line) -> Line:
    return line | {key: line[key][:2] for key in ("loss", "sent", "read", "held") if line[key]}


WRONG: dict[Any, list[tuple[str, tuple[str, Change, Any], str]]] = {}
WRONG[grade.capstone] = [
    ("mistake", ("read twice", as_it_is, forecast()), "row 0 .* ranks 0 and 2, and row 4|by ranks"),
    ("mistake", ("node alone", as_it_is, forecast()), "In step 1 the mean loss .* all four ranks"),
    ("torch's own", ("around", as_it_is, forecast()), r"only 0\.0 MB a step went through"),
    ("memory", ("ddp", as_it_is, forecast("ddp")), r"holds 16\.7 MB .* has 11\.0 MB"),
    ("traffic", ("fsdp", as_it_is, forecast("fsdp")), r"34 steps of 0\.28. s take .* budget is 8"),
    ("off by one", ("hsdp", lambda log: [{**log[0], "steps": 20}, *log[1:21]], forecast()),
     r"After 20 steps the mean loss .* 3\.3 is asked for"),
    ("two ranks", ("hsdp", lambda log: [{**log[0], "ranks": 2}, *log[1:]], forecast()), "2 ranks"),
    ("two ranks", ("hsdp", steps(of_two_ranks), forecast()), "all take part"),
    ("constant", ("hsdp", steps(lambda line: line | {"loss": [3.2] * 4}), forecast()),
     r"In step 0 rank 0 has a loss of 3\.2000; with the first weights"),
    ("constant", ("hsdp", steps(lambda line: line | {"seconds": 0.01}), forecast()),
     "its computing alone"),
    ("constant", ("hsdp", lambda log: [*log[:7], *log[9:]], forecast()), "32 steps of 34"),
    ("constant", ("hsdp", steps(lambda line: {"step": line["step"]}), forecast()), "lacks 'loss'"),
    ("unit", ("hsdp", as_it_is, forecast(sent=1.62e6)), "sends 6,486,120 .* Four bytes make"),
    ("unit", ("hsdp", as_it_is, forecast(held=39.2e6)), "all ranks have together"),
    ("unit", ("hsdp", as_it_is, forecast(seconds=204)), "not milliseconds"),
    ("these sizes", ("hsdp", as_it_is, forecast("zero2")), "holds 9,1.* forecast 10,612,392"),
    ("type", ("hsdp", as_it_is, forecast(held="ten MB")), r"forecast\['held'\]: expected a number"),
    ("type", ("hsdp", as_it_is, {"held": 1e7}), "has no 'sent'"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "told", "diagnosis"),
    [(*answer, diagnosis) for _, answer, diagnosis in WRONG[grade.capstone]],
)
def test_a_wrong_answer_is_called_wrong_and_told_why(
    name: str, change: Change, told: Any, diagnosis: str, logs: Logs, tmp_path: Path
) -> None:
    says(diagnosis, grade.capstone(write(change(logs[name]), tmp_path), told))


def test_a_log_that_is_no_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").write_text("loss 3.2\n")
    says("Line 1 of run.jsonl is not JSON", grade.capstone(tmp_path / "run.jsonl", forecast()))
