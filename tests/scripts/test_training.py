"""The scripts train as one process on the whole batch does, and resume where they stopped."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import minidist

SCRIPTS = Path(__file__).parents[2] / "scripts"
BATCH, WINDOWS, STEPS = 12, 40, 5  # three steps to an epoch, and four windows are left over
NUMBERS = re.compile(r"step (\d+): loss ([\d.]+), gradient norm ([\d.]+)")


def load(name: str, dropout: float) -> ModuleType:
    """The script as a module: in float32, with little text, and a line for each step."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.PRECISION, module.LOG_EVERY = torch.float32, 1
    text = "".join(module.topics[topic] for topic in sorted(module.topics))
    module.topics = {"some": text[: WINDOWS * module.CONTEXT + 1]}
    module.GPT = partial(module.GPT, dropout=dropout)
    return module


def runs(*calls: tuple[str, float, str, int]) -> list[list[str]]:
    """On a rank: run scripts one after the other, in the group that it has; what each prints."""
    dist.init_process_group = dist.destroy_process_group = lambda *_, **__: None
    printed = []
    for name, dropout, folder, steps in calls:
        module, lines = load(name, dropout), []
        module.print = lambda line, flush, lines=lines: lines.append(line)
        sys.argv = [name, f"--steps={steps}", f"--checkpoints={folder}"]
        sys.argv += [f"--batch={BATCH}", "--accumulate=2"]
        module.main()
        printed.append(lines)
    return printed


def numbers(lines: list[str]) -> torch.Tensor:
    return torch.tensor([[float(n) for n in NUMBERS.fullmatch(line).groups()] for line in lines])


def whole_batch() -> torch.Tensor:
    """Steps, losses and gradient norms of one process without any of the script but its model."""
    module = load("ddp", dropout=0.0)
    data = module.topics["some"].encode()
    windows = torch.tensor([list(data[i * 64 : i * 64 + 65]) for i in range(WINDOWS)])
    torch.manual_seed(0)
    model = module.GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = []
    for step in range(STEPS):
        order = torch.randperm(WINDOWS, generator=torch.Generator().manual_seed(step // 3))
        optimizer.zero_grad()
        loss = model(windows[order[step % 3 * BATCH :][:BATCH]])
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rows.append([step + 1, loss.item(), norm.item()])
    return torch.tensor(rows)


def last_checkpoint(folder: Path, scratch: Path) -> dict[str, dict[str, torch.Tensor]]:
    dcp_to_torch_save(folder / f"step-{STEPS:08}", scratch)
    loaded: dict[str, dict[str, torch.Tensor]] = torch.load(scratch, weights_only=True)
    return loaded


def test_two_ranks_train_as_one_process_and_resume_as_if_never_stopped(tmp_path: Path) -> None:
    oracle = whole_batch()
    folder = {name: tmp_path / name for name in ("plain", "whole", "broken", "half")}
    for name in ("ddp", "fsdp2"):
        here = {key: path / name for key, path in folder.items()}
        (here["broken"] / "unfinished-00000009").mkdir(parents=True)  # killed while it saved
        alike, half, never, before, after = minidist.launch(
            runs,
            2,
            (name, 0.0, here["plain"], STEPS),
            (name, 0.0, here["half"], 2),
            (name, 0.1, here["whole"], STEPS),
            (name, 0.1, here["broken"], 2),  # in the middle of an epoch
            (name, 0.1, here["broken"], STEPS),  # and into the next
        )[0]
        torch.testing.assert_close(numbers(alike), oracle, rtol=0, atol=2e-4)
        assert half == alike[:2]
        assert before + after == never != alike, "dropout does something"
        first, second = (
            last_checkpoint(here[key], tmp_path / "one.pt") for key in ("whole", "broken")
        )
        assert first["step"] == second["step"] == STEPS
        assert first["model"].keys() == second["model"].keys()
        assert all(map(torch.equal, first["model"].values(), second["model"].values()))
        kept = sorted(path.name for path in here["broken"].glob("step-*"))
        assert kept == ["step-00000002", "step-00000005"]
    # On three ranks each goes on from what the other has saved on two.
    resumed = minidist.launch(
        runs,
        3,
        ("ddp", 0.0, folder["half"] / "fsdp2", STEPS),
        ("fsdp2", 0.0, folder["half"] / "ddp", STEPS),
    )[0]
    for lines in resumed:
        torch.testing.assert_close(numbers(lines), oracle[2:], rtol=0, atol=2e-4)


def test_both_are_short_and_show_the_same_model_and_import_torch_alone() -> None:
    sources = [(SCRIPTS / f"{name}.py").read_text() for name in ("ddp", "fsdp2")]
    models = []
    for source in sources:
        assert len(source.splitlines()) < 120
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


def torchrun(folder: Path, script: Path, *args: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*launcher, str(script), *args]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_under_torchrun_in_bfloat16_and_without_a_warning(tmp_path: Path) -> None:
    done = torchrun(tmp_path, SCRIPTS / "fsdp2.py", "--steps=10", "--batch=8", "--accumulate=2")
    assert (done.returncode, done.stderr) == (0, "")
    _, loss, _ = numbers(done.stdout.splitlines())[0]
    assert loss < 5
    assert (tmp_path / "checkpoints" / "step-00000010" / ".metadata").exists()


def test_a_rank_that_raises_ends_the_other(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    source = (SCRIPTS / "ddp.py").read_text()
    script.write_text(source.replace("\n        optimizer.zero_grad()\n", FAILS))
    done = torchrun(tmp_path, script, "--steps=1000", "--batch=8")
    assert done.returncode == 1
    assert "RuntimeError: rank 1 is out of luck" in done.stderr
