"""The capstone: its clock, and its grader on logs of right and wrong runs.

The runs are real, and short: `whole` goes on with the losses of one process, which are theirs too.
"""

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import minidist
from course.ask.verdict import Wrong
from course.chapters.capstone import exercises as grade
from course.chapters.capstone import run, stub, task
from course.chapters.capstone.answers import hybrid
from course.chapters.capstone.cluster import LINKS, Clock
from course.chapters.capstone.run import METERED, Line
from course.chapters.cluster.two_hosts import loopback, torchrun
from course.submissions.apart import Limits
from course.submissions.command import collected
from course.submissions.run import Results, grade_all
from minidist.memory.state import FP32
from tests.course.verdicts import says
from tests.support import capstone as hand
from tests.support import submissions as handed
from tests.support.ledger import Row, sections

JOB = 'print(*torchrun(loopback()[:1], 4, "-m", "course.chapters.capstone", "mine.capstone"))'
Logs = dict[str, list[Line]]
Change = Callable[[list[Line]], list[Line]]


@pytest.fixture(scope="module")
def logs() -> Logs:
    """The steps of each run by hand; the ranks' checks of each call are left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIDIST_CHECK", "0")
        found = minidist.launch(hand.logs, task.RANKS, timeout=200)
    assert all(each == found[0] for each in found)
    return {name: whole(log) for name, log in found[0].items()}


def whole(log: list[Line]) -> list[Line]:
    """A log of all steps: those that were made, and the last one again and again."""
    lines = json.loads(json.dumps(log))  # tuples become lists, as in a file
    for step in range(len(lines), task.STEPS):
        held = lines[-1]["held"] or ([0] * task.RANKS if step == METERED else None)
        loss = [task.alone(task.STEPS)[step]] * task.RANKS
        lines.append(lines[-1] | {"step": step, "loss": loss, "held": held})
    return lines


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A package for modules such as a learner writes."""
    folder = tmp_path_factory.mktemp("path") / "answers"
    folder.mkdir()
    (folder / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder.parent)
        patch.setenv("PYTHONPATH", f"{folder.parent}:{Path(__file__).parents[2]}")
        yield folder


def module(answers: Path, name: str, told: Any = None) -> tuple[str, Path]:
    """A module that runs what is called so by hand: its name and its file."""
    file = answers / f"answer_{len([*answers.glob('*.py')])}.py"
    source = f"from tests.support.capstone import RUNS\n\nRun = RUNS[{name!r}][0]\n"
    file.write_text(source + (f"FORECAST = {told!r}\n" if told else ""))
    return f"answers.{file.stem}", file


def as_it_is(log: list[Line]) -> list[Line]:
    return log


def hand_in(
    answers: Path, name: str, steps: list[Line], told: Any, change: Change = as_it_is, **head: Any
) -> str:
    """A module and a log beside it, as `write` has it but for changes; the module's name."""
    own, file = module(answers, name, told)
    first = {"digest": sha256(file.read_bytes()).hexdigest(), "run": 1, "forecast": told} | head
    log = change([first, *steps])
    file.with_suffix(".jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    return own


def forecast(strategy: str = "hsdp", **changes: Any) -> dict[str, Any]:
    """What `minidist.plan` says of a strategy, but for changes."""
    batch = task.ROWS // task.RANKS
    how = {"batch": batch, "policy": FP32, "foreach": False}
    plan = minidist.plan(task.sizes(), task.MACHINE, task.RANKS, **how)
    found = plan.forecasts[strategy]
    return {"held": found.peak, "sent": found.sent, "seconds": found.overlapped} | changes


@pytest.mark.parametrize("name", ["hsdp", "from scratch", "kept"])
def test_different_right_answers_are_right(name: str, logs: Logs, answers: Path) -> None:
    least = forecast("zero2") | {"held": 8.4e6, "seconds": 0.2} if name == "kept" else forecast()
    verdict = grade.capstone(hand_in(answers, name, logs[name], least))
    assert verdict, verdict
    assert verdict.text.startswith(f"{task.STEPS} steps with the losses of one process")
    assert "no forecast any more" not in verdict.text


def test_losses_of_the_library_are_those_of_one_process_to_the_end(logs: Logs) -> None:
    """The last ones as well as the first: a twentieth of what the grader allows is enough."""
    found = minidist.launch(hand.losses, task.RANKS, timeout=200)[0]
    for name, losses in found.items():
        assert losses == pytest.approx(task.alone(task.STEPS), rel=grade.SAME / 20), name


@pytest.mark.parametrize("name", ["ddp", "fsdp", "hsdp"])
def test_what_the_plan_says_is_what_a_run_takes(name: str, logs: Logs) -> None:
    found, right = grade.measured(logs[name]), forecast(name)
    assert found["sent"] == pytest.approx(right["sent"], rel=1e-3)
    assert found["seconds"] == pytest.approx(right["seconds"], rel=0.06)
    within = 0.12 if name == "ddp" else 0.08  # ours keeps gradients beside its buckets
    assert found["held"] == pytest.approx(right["held"], rel=within)


def test_no_module_and_no_log_are_no_mistakes_yet(answers: Path) -> None:
    none = grade.capstone("answers.none")
    assert str(none) == "Not yet. There is no answers/none.py yet: write it."
    own, file = module(answers, "hsdp", forecast())
    said = str(grade.capstone(own))
    assert said == f"Not yet. There is no {file.stem}.jsonl yet: run it."


def one_step(own: str) -> None:
    task.STEPS = 1
    run.write(own)


def test_a_run_writes_its_forecast_first_and_counts(answers: Path, logs: Logs) -> None:
    own, file = module(answers, "hsdp", forecast())
    for number in (1, 2):
        minidist.launch(one_step, task.RANKS, own)
        first, *steps = map(json.loads, file.with_suffix(".jsonl").read_text().splitlines())
        assert first.pop("digest") == sha256(file.read_bytes()).hexdigest()
        assert first == {"run": number, "forecast": forecast()}
        assert [each["step"] for each in steps] == [0]
    again = grade.capstone(hand_in(answers, "hsdp", logs["hsdp"], forecast(), run=2))
    assert again
    assert again.text.endswith("in run 2 it is no forecast any more.")


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, r"FORECAST\['held'\] has to be a number; it is None"),
        ({"held": 1e7, "seconds": 0.2}, r"FORECAST\['sent'\] has to be a number; it is None"),
        (forecast(seconds="soon"), r"FORECAST\['seconds'\] has to be a number; it is 'soon'"),
    ],
)
def test_no_run_begins_without_a_forecast(told: Any, why: str, answers: Path) -> None:
    own, file = module(answers, "hsdp", told)
    with pytest.raises(Wrong, match=f"Forecast before you run: {why}"):
        run.write(own)
    assert not file.with_suffix(".jsonl").exists()


def test_the_job_says_so_in_a_sentence(answers: Path) -> None:
    own, _ = module(answers, "hsdp", forecast(held=None))
    (said,) = torchrun(loopback()[:1], 2, "-m", "course.chapters.capstone", own)
    assert said == "Forecast before you run: FORECAST['held'] has to be a number; it is None.\n"


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


def of_two_ranks(line: Line) -> Line:
    return line | {key: line[key][:2] for key in ("loss", "sent", "read", "held") if line[key]}


@pytest.mark.parametrize("row", sections("labs/capstone")["capstone"])
def test_each_answer_is_judged(row: Row, logs: Logs, answers: Path) -> None:
    name, change, told = eval(row.change.removeprefix("= "))
    told = told(logs[name]) if callable(told) else told
    says(row.diagnosis, grade.capstone(hand_in(answers, name, logs[name], told, change)))


def in_step_1(change: Callable[[Line], Line]) -> Change:
    """Change that step alone."""
    return steps(lambda line: line | (change(line) if line["step"] == 1 else {}))


@pytest.mark.parametrize(
    ("name", "change", "other"),
    [
        ("around", as_it_is, "'sent' in step 0"),  # sends less than its log says
        ("hsdp", in_step_1(lambda line: {"sent": [6_486_121] * 4}), "'sent' in step 1"),
        ("hsdp", in_step_1(lambda line: {"seconds": 0.9999 * line["seconds"]}), "'seconds'"),
        ("hsdp", in_step_1(lambda line: {"read": line["read"][::-1]}), "'read' in step 1"),
        ("hsdp", steps(lambda line: line | {"held": line["held"] and [8.5e6] * 4}), "'held'"),
    ],
)
def test_a_forged_log_is_refused(
    name: str, change: Change, other: str, logs: Logs, answers: Path
) -> None:
    own = hand_in(answers, name, logs["hsdp"], forecast(held=9.2e6), change)
    says(f"Run again, {own} has another {other}", grade.capstone(own))


def test_a_log_of_another_module_or_of_an_older_version_is_refused(
    logs: Logs, answers: Path
) -> None:
    other = hand_in(answers, "kept", logs["hsdp"], forecast())
    log = answers / f"{other.removeprefix('answers.')}.jsonl"
    own, file = module(answers, "hsdp", forecast())
    says(f"{log.name} is not of {file.name} as it is now", grade.capstone(own, log))
    own = hand_in(answers, "hsdp", logs["hsdp"], forecast())
    file = answers / f"{own.removeprefix('answers.')}.py"
    file.write_text(file.read_text() + "\nFORECAST['seconds'] = 0.2\n")
    says(f"is not of {file.name} as it is now: run that", grade.capstone(own))


def test_a_log_that_is_no_log_is_refused(answers: Path) -> None:
    own, file = module(answers, "hsdp", forecast())
    file.with_suffix(".jsonl").write_text("loss 3.2\n")
    says(f"Line 1 of {file.stem}.jsonl is not JSON", grade.capstone(own))


def test_a_class_is_graded_and_no_lab_runs_the_job_again(logs: Logs, tmp_path: Path) -> None:
    text = Path(hybrid.__file__).read_text()
    twice = text.replace("self.cluster.rank, self.cluster.ranks)", "self.cluster.rank % 2, 2)")
    assert twice != text
    read = [[*range(4)], [*range(4, 8)]] * 2
    half = steps(lambda line: line | {"read": read})
    uncommented = handed.lab("capstone", capstone=f"{JOB}\ngrade.capstone('mine.capstone')")
    handed_in = {"right": (text, as_it_is), "no lab": (text, as_it_is), "wrong": (twice, half)}
    for learner, (source, change) in handed_in.items():
        labs = {} if learner == "no lab" else {"capstone": uncommented}
        mine = handed.hand_in(tmp_path / learner, **labs) / "mine"
        handed.hand_in(tmp_path / learner, capstone=source)
        head = {"digest": run.digest_of(mine / "capstone.py"), "run": 1, "forecast": forecast()}
        lines = change([head, *logs["hsdp"]])
        (mine / "capstone.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    handed.hand_in(tmp_path / "none", capstone=handed.lab("capstone"))
    results = Results(tmp_path / "grades.json")
    task = "capstone: capstone"
    failed = grade_all(collected(tmp_path), [task], results, 2, Limits(), "7", lambda *_: None)
    assert failed == []
    found = {learner: entry["tasks"][task] for learner, entry in results.entries.items()}
    said = {learner: each["text"].partition(" of ")[0] for learner, each in found.items()}
    assert said == {
        "no lab": f"Correct. {len(logs['hsdp'])} steps with the losses",
        "none": "Not yet. There is no mine/capstone.py.",
        "right": f"Correct. {len(logs['hsdp'])} steps with the losses",
        "wrong": "Wrong. In step 0 row 0 is read more than once, by ranks 0 and 2. How many parts "
        "does a step's batch have?",
    }
    assert all(entry["notes"] == [] for entry in results.entries.values())
