"""The scripts train as one process on the whole batch does, and resume where they stopped."""

import argparse
import ast
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import minidist

SCRIPTS = Path(__file__).parents[2] / "scripts"
BATCH, WINDOWS, STEPS = 12, 40, 5  # three steps to an epoch, and four windows are left over
RATES = [0.5e-3, 0.64e-3, 0.46e-3, 0.28e-3, 0.1e-3]  # two steps up, and down to a tenth
NUMBERS = re.compile(r"step (\d+): loss ([\d.]+), gradient norm ([\d.]+)")
LINE = re.compile(rf"({NUMBERS.pattern}), [\d,]+ tokens/s, \d+\.\d\d GB")


class Rotary(torch.nn.Embedding):
    """Turns what it looks up by an angle that grows with the position; no state dict has it."""

    def __init__(self, number: int, width: int) -> None:
        super().__init__(number, width)
        angle = torch.arange(64)[:, None] * torch.arange(1, width // 2 + 1) / width
        self.register_buffer("turn", torch.stack([angle.cos(), angle.sin()]), persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        (x, y), (cos, sin) = super().forward(ids).chunk(2, -1), self.turn
        return torch.cat([x * cos - y * sin, x * sin + y * cos], -1)


def load(
    name: str,
    *,
    rotary: bool = False,
    dropout: float = 0.0,
    rate: float = 1e-3,
    save_every: int = 100,
) -> ModuleType:
    """The script as a module: in float32, with little text, and a line for each step."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.LR, module.SAVE_EVERY = rate, save_every
    module.PRECISION, module.LOG_EVERY, module.WARM_UP = torch.float32, 1, 2
    module.WINDOWS, module.WORKERS = module.WINDOWS[:WINDOWS], 0
    gpt = partial(module.GPT, dropout=dropout)

    def turned(**how: Any) -> torch.nn.Module:
        model = gpt(**how)
        model.token = Rotary(256, 64)
        return model

    module.GPT = turned if rotary else gpt
    return module


def start(name: str, flags: list[str], *, warned: int | None = None, **how: Any) -> list[str]:
    """Run a script on this rank, in the group that it has; what it prints.

    The rank `warned` gets the scheduler's signal when the ranks meet.
    """
    module, lines = load(name, **how), []
    module.print = lambda line, flush: lines.append(line)
    dist.init_process_group = lambda *_, **__: (
        dist.get_rank() == warned and signal.raise_signal(signal.SIGUSR1)
    )
    dist.destroy_process_group = lambda: None
    os.environ |= {"WORLD_SIZE": str(dist.get_world_size())}
    sys.argv = [name, *flags, f"--batch={BATCH}"]
    assert module.main() == (0 if warned is None else 143), "no success if it is stopped early"
    return [LINE.fullmatch(line)[1] for line in lines]


def runs(*calls: dict[str, Any]) -> list[list[str]]:
    """On a rank: one after the other."""
    return [start(**call) for call in calls]


def call(name: str, folder: Path, *flags: str, **how: Any) -> dict[str, Any]:
    always = [f"--steps={STEPS}", f"--checkpoints={folder}", "--accumulate=2"]
    return {"name": name, "flags": [*always, *flags]} | how


def numbers(lines: list[str]) -> torch.Tensor:
    return torch.tensor([[float(n) for n in NUMBERS.match(line).groups()] for line in lines])


def whole_batch(**how: Any) -> torch.Tensor:
    """Steps, losses and gradient norms of one process without any of the script but its model."""
    module = load("ddp", **how)
    data = "".join(sorted(module.topics.values())).encode()
    windows = torch.tensor([list(data[i * 64 : i * 64 + 65]) for i in range(WINDOWS)])
    torch.manual_seed(0)
    model = module.GPT()
    optimizer = torch.optim.AdamW(model.parameters())
    rows = []
    for step, rate in enumerate(RATES):
        optimizer.param_groups[0]["lr"] = rate
        order = torch.randperm(WINDOWS, generator=torch.Generator().manual_seed(step // 3))
        optimizer.zero_grad()
        loss = model(windows[order[step % 3 * BATCH :][:BATCH]])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rows.append([step + 1, loss.item(), norm.item()])
    return torch.tensor(rows)


def last_checkpoint(folder: Path, scratch: Path, step: int = STEPS) -> dict[str, Any]:
    dcp_to_torch_save(folder / f"step-{step:08}", scratch)
    loaded: dict[str, Any] = torch.load(scratch, weights_only=True)
    return loaded


def test_two_ranks_train_as_one_process_and_resume_as_if_never_stopped(tmp_path: Path) -> None:
    oracle, turned = whole_batch(), whole_batch(rotary=True)
    assert not torch.allclose(oracle, turned, atol=1e-2)
    folder = {name: tmp_path / name for name in ("plain", "whole", "broken", "half", "turned")}
    for name in ("ddp", "fsdp2"):
        here = {key: path / name for key, path in folder.items()}
        (here["broken"] / "unfinished-00000009").mkdir(parents=True)  # killed while it saved
        for strange in ("step-00000008", "step-x"):  # half of a checkpoint, and none of ours
            (here["broken"] / strange).mkdir()
        (here["broken"] / "step-x" / ".metadata").touch()
        alike, half, rotary, never, before, after = minidist.launch(
            runs,
            2,
            call(name, here["plain"]),
            call(name, here["half"], warned=1),
            call(name, here["turned"], rotary=True),
            call(name, here["whole"], dropout=0.1),
            call(name, here["broken"], dropout=0.1, warned=0),  # in the middle of an epoch
            call(name, here["broken"], dropout=0.1),  # and into the next
        )[0]
        torch.testing.assert_close(numbers(alike), oracle, rtol=0, atol=2e-4)
        torch.testing.assert_close(numbers(rotary), turned, rtol=0, atol=2e-4)
        assert half == alike[:1], "a signal to one rank: all save at the next log, and end"
        assert before + after == never != alike, "dropout does something"
        first, second = (
            last_checkpoint(here[key], tmp_path / "one.pt") for key in ("whole", "broken")
        )
        assert first["step"] == second["step"] == STEPS
        assert first["model"].keys() == second["model"].keys()
        assert all(map(torch.equal, first["model"].values(), second["model"].values()))
        kept = sorted(path.parent.name for path in here["broken"].glob("step-0*/.metadata"))
        assert kept == ["step-00000001", "step-00000005"]
    # On three ranks each goes on from what the other has saved on two.
    resumed = minidist.launch(
        runs, 3, call("ddp", folder["half"] / "fsdp2"), call("fsdp2", folder["half"] / "ddp")
    )[0]
    for lines in resumed:
        torch.testing.assert_close(numbers(lines), oracle[1:], rtol=0, atol=2e-4)


def with_calls_counted(folder: Path, name: str, *flags: str) -> dict[str, Any]:
    """On a rank: what a script prints, how many calls its flags make, how long gradients stay."""
    counts = {"compiled": 0, "recomputed": 0, "reduced": 0}

    def counted(what: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **how: Any) -> Any:
            counts[what] += 1
            return do(*args, **how)

        return call

    torch.compile = counted("compiled", lambda forward: forward)
    torch.utils.checkpoint.checkpoint = counted("recomputed", torch.utils.checkpoint.checkpoint)
    dist.reduce_scatter_tensor = counted("reduced", dist.reduce_scatter_tensor)
    dist.reduce_scatter_single = counted("reduced", dist.reduce_scatter_single)
    counts["lines"] = start(name, [*call(name, folder, *flags)["flags"]])
    return counts


def test_switches_change_what_is_done_and_not_the_result(tmp_path: Path) -> None:
    def counts(name: str, *flags: str) -> dict[str, Any]:
        folder = tmp_path / (name + "".join(flags))
        return minidist.launch(with_calls_counted, 2, folder, name, *flags)[0]

    for name in ("ddp", "fsdp2"):
        plain, again = counts(name), counts(name, "--recompute", "--compile")
        blocks, parts = 2, 2
        assert (plain["compiled"], plain["recomputed"]) == (0, 0)
        assert (again["compiled"], again["recomputed"]) == (blocks, blocks * parts * STEPS)
        torch.testing.assert_close(
            numbers(again["lines"]), numbers(plain["lines"]), rtol=0, atol=2e-4
        )
    once = counts("fsdp2", "--sync-once")
    assert plain["reduced"] == parts * once["reduced"] > 0
    torch.testing.assert_close(numbers(once["lines"]), numbers(plain["lines"]), rtol=0, atol=2e-4)


REFUSED = [
    (["--steps=-3"], {}, "expected at least 1, got -3"),
    (["--batch=0"], {}, "expected at least 1, got 0"),
    (["--accumulate=0"], {}, "expected at least 1, got 0"),
    (["--batch=100000"], {}, "to 40"),
    (["--batch=42", "--accumulate=21"], {}, "to 40"),
    (["--batch=12"], {"WORLD_SIZE": "5"}, "--batch 12: no multiple of ranks x accumulate"),
    (["--batch=8", "--accumulate=3"], {"WORLD_SIZE": "4"}, "--batch 8: no multiple"),
    ([], {"LOCAL_WORLD_SIZE": "2"}, "2 ranks on this node, but 1 visible GPUs"),
    (
        [],
        {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_MAX_RESTARTS": "3"},
        "--max-restarts needs c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
    ),
]


def flags(name: str, environment: dict[str, str], gpus: int, *given: str) -> argparse.Namespace:
    """The flags that a script makes of what it is given, on a host of so many GPUs."""
    module = load(name)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        patch.setattr(torch.cuda, "device_count", lambda: gpus)
        patch.setattr(sys, "argv", [name, "--batch=20", *given])
        taken: argparse.Namespace = module.flags()
        return taken


def test_wrong_flags_are_refused_before_the_ranks_meet(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = []
    for name, (given, environment, says) in product(("ddp", "fsdp2"), REFUSED):
        with pytest.raises(SystemExit, match="2"):
            flags(name, environment, len(environment.keys() & {"LOCAL_WORLD_SIZE"}), *given)
        if says not in (said := capsys.readouterr().err):
            wrong.append(f"{name} {given}, {environment}: expected {says!r} in {said}")
    assert not wrong, "\n".join(wrong)


def test_right_flags_are_taken() -> None:
    environment = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_MAX_RESTARTS": "3"}
    environment["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    for name in ("ddp", "fsdp2"):
        taken = flags(name, environment, 4, "--batch=40", "--accumulate=2", "--steps=1")
        assert (taken.batch, taken.accumulate, taken.steps) == (40, 2, 1)


def test_both_are_short_and_show_the_same_model_and_import_torch_alone() -> None:
    sources = [(SCRIPTS / f"{name}.py").read_text() for name in ("ddp", "fsdp2")]
    models = []
    for source in sources:
        assert len(source.splitlines()) <= 170
        tree = ast.parse(source)
        (model,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
        assert (model.end_lineno or 0) - model.lineno < 20
        models.append(ast.unparse(model))
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {
            node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in nodes
        }
        assert {str(name).split(".")[0] for name in names} - set(sys.stdlib_module_names) == {
            "torch"
        }
    assert models[0] == models[1]


FAILS = """
        if rank == 1 and step == 2:
            raise RuntimeError("rank 1 is out of luck")
        optimizer.zero_grad()
"""


LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def torchrun(folder: Path, script: Path, *args: str) -> subprocess.Popen[str]:
    environment, pipe = os.environ | {"OMP_NUM_THREADS": "1"}, subprocess.PIPE
    command = [*LAUNCH, str(script), *args]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=pipe, stderr=pipe, text=True
    )


def test_under_torchrun_in_bfloat16_and_without_a_warning(tmp_path: Path) -> None:
    run = torchrun(tmp_path, SCRIPTS / "fsdp2.py", "--steps=10", "--batch=8", "--accumulate=2")
    said, errors = run.communicate()
    assert (run.returncode, errors) == (0, "")
    (line,) = said.splitlines()
    assert LINE.fullmatch(line)
    assert numbers([line])[0, 1] < 5.5
    assert (tmp_path / "checkpoints" / "step-00000010" / ".metadata").exists()


def test_torchrun_s_end_lets_the_ranks_save(tmp_path: Path) -> None:
    script = tmp_path / "ddp.py"
    source = (SCRIPTS / "ddp.py").read_text()
    script.write_text(source.replace("= 64, 0, 10, 100, 2, ", "= 64, 0, 5, 10**9, 2, "))
    with torchrun(tmp_path, script, "--steps=1000000", "--batch=8") as run:
        assert run.stdout
        assert run.stdout.readline().startswith("step 5: loss")
        run.terminate()  # torchrun tells its ranks, and with each its loaders
        run.communicate()
    assert list((tmp_path / "checkpoints").glob("step-*/.metadata"))


def test_a_rank_that_raises_ends_the_other(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    source = (SCRIPTS / "ddp.py").read_text()
    script.write_text(source.replace("\n        optimizer.zero_grad()\n", FAILS))
    run = torchrun(tmp_path, script, "--steps=1000", "--batch=8")
    _, errors = run.communicate()
    assert run.returncode == 1
    assert "RuntimeError: rank 1 is out of luck" in errors
    report = errors[errors.index("Root Cause") :]
    assert "rank      : 1" in report
    assert "in main" in report, "what `record` has kept"


def test_ranks_with_other_flags_do_not_begin(tmp_path: Path) -> None:
    script, read = tmp_path / "other.py", "args, signals = flags(), []"
    source = (SCRIPTS / "ddp.py").read_text()
    script.write_text(source.replace(read, f"{read}; args.batch *= 1 + int(os.environ['RANK'])"))
    run = torchrun(tmp_path, script, "--steps=2", "--batch=8")
    said, errors = run.communicate()
    assert (run.returncode, said) == (1, "")
    assert re.search(r"flags differ: .*'batch': 8.* on rank 0, .*'batch': 16.* on another", errors)
