"""Eight strategies train one model alike, also after a resume, and tell what they sent and held."""

import hashlib
import math
import shutil
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from minidist import launch
from minidist.comm.replicas import digest
from minidist.train.gpt import GPT
from minidist.train.loop import Record, Training
from minidist.train.options import STRATEGIES, Options, TrainError, check
from minidist.train.text import characters, rows_of, text

SMALL = Options(width=16, layers=2, heads=2, context=8, batch=12, steps=4, clip=0.2)
TOGETHER = STRATEGIES[1:]


def records(options: Options) -> list[Record]:
    return list(Training(options))


@pytest.fixture(scope="module")
def alone() -> tuple[list[float], int]:
    """The losses of plain PyTorch on whole batches, and the bytes of the model."""
    ids, alphabet = characters(text())
    torch.manual_seed(SMALL.seed)
    net = GPT(len(alphabet), SMALL.width, SMALL.layers, SMALL.heads, SMALL.context)
    optimizer = torch.optim.AdamW(net.parameters(), SMALL.lr)
    losses = []
    for step in range(SMALL.steps):
        rows = rows_of(ids, step, rows=12, context=8, seed=SMALL.seed, rank=0, ranks=1)
        logits = net(rows[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), SMALL.clip)
        assert norm > SMALL.clip, "or clipping is not tested"
        optimizer.step()
        losses.append(loss.item())
    return losses, sum(each.nbytes for each in net.parameters())


class Run(NamedTuple):
    """What a rank saw of one strategy: a run that makes checkpoints, then a part of it again."""

    undisturbed: list[Record]
    state: tuple[str, list[float]]  # every bit of what this rank has then, a random number per step
    resumed: list[Record]
    state_again: tuple[str, list[float]]
    folder: list[str]


def ends(options: Options) -> tuple[list[Record], tuple[str, list[float]]]:
    from minidist.train.checkpoint import flattened

    training = Training(options)
    made, drawn = list[Record](), list[float]()
    for record in training:
        made.append(record)
        drawn.append(torch.rand(()).item())
    pieces = flattened(training.wrapped.parts(), training.wrapped.state)
    return made, (digest(piece.tensor for piece in pieces.values()), drawn)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Run]]:
    """Of each strategy, on each rank."""
    folders = tmp_path_factory.mktemp("checkpoints")

    def run() -> dict[str, Run]:
        found = {}
        for name in TOGETHER:
            folder = folders / name
            options = replace(SMALL, strategy=name, accumulate=3, checkpoint=folder, every=2)
            undisturbed, state = ends(options)
            names = sorted(path.name for path in folder.glob("step-*"))
            dist.barrier()
            if dist.get_rank() == 0:
                shutil.rmtree(folder / "step-4")
            resumed, again = ends(options)
            found[name] = Run(undisturbed, state, resumed, again, names)
        return found

    return launch(run, 4, timeout=200)


def losses_of(some: list[Record]) -> list[float]:
    return [record["loss"] for record in some]


def test_the_losses_are_those_of_one_process_and_a_resumed_run_has_every_bit(
    runs: list[dict[str, Run]], alone: tuple[list[float], int]
) -> None:
    offenders = []
    for name, rank, run in [(n, r, each[n]) for n in TOGETHER for r, each in enumerate(runs)]:
        undisturbed = losses_of(run.undisturbed)
        (bits, drawn), (bits_again, drawn_again) = run.state, run.state_again
        right = {
            "the losses of one process": undisturbed == pytest.approx(alone[0], abs=2e-5),
            "the losses of rank 0": undisturbed == losses_of(runs[0][name].undisturbed),
            "the same losses when resumed": losses_of(run.resumed) == undisturbed[2:],
            "the same bits when resumed": bits_again == bits,
            "the same random numbers when resumed": drawn_again == drawn[2:],
            "two checkpoints": run.folder == ["step-2", "step-4"],
        }
        offenders += [
            f"{name}, rank {rank}: not {what}" for what, holds in right.items() if not holds
        ]
    assert not offenders, "\n".join(offenders)
    for name in TOGETHER:
        drawn = [number for each in runs for number in each[name].state[1]]
        assert len({*drawn}) == 4 * 4, f"{name}: a rank has its own random numbers in each step"


def test_a_record_has_what_was_sent_and_held(
    runs: list[dict[str, Run]], alone: tuple[list[float], int]
) -> None:
    last = {name: run.undisturbed[-1] for name, run in runs[0].items()}
    assert all(record["peak_memory"] > 50e6 for record in last.values()), "a process with torch"
    sent = {name: record["bytes_sent"] for name, record in last.items()}
    assert [name for name in sent if sent[name] is None] == ["torch-ddp", "torch-fsdp"]
    model = 3 / 4 * alone[1]  # what a ring of 4 sends to gather a model, or to reduce-scatter it
    assert sent["ddp"] == pytest.approx(2 * model, rel=0.01), "once a step"
    assert sent["zero1"] == pytest.approx(2 * model, rel=0.02)
    assert sent["zero2"] == pytest.approx(2 * model, rel=0.02)
    assert 4 * model < sent["fsdp"] < 8 * model, "twice each backward pass, but for the root"


def test_a_step_reads_the_same_rows_on_any_number_of_ranks_and_no_two_alike() -> None:
    ids = torch.arange(100_000)
    how: dict[str, Any] = {"rows": 12, "context": 8}
    for seed, step in ((0, 0), (0, 1), (1, 0)):
        [whole] = [rows_of(ids, step, **how, seed=seed, rank=0, ranks=1)]
        parts = [rows_of(ids, step, **how, seed=seed, rank=rank, ranks=3) for rank in range(3)]
        assert torch.equal(torch.cat(parts), whole)
        assert whole.shape == (12, 9)
        assert torch.equal(whole, whole[:, :1] + torch.arange(9)), "rows are consecutive"
    starts = [rows_of(ids, step, **how, seed=s, rank=0, ranks=1) for s in (0, 1) for step in (0, 1)]
    assert len(torch.stack(starts)[:, :, 0].unique()) > 40


WRONG: dict[str, dict[str, Any]] = {
    "--strategy: expected one of single, ddp": {"strategy": "horovod"},
    "--precision: expected one of float32, bfloat16, got 'fp8'": {"precision": "fp8"},
    "--width: expected a multiple of the 3 heads, got 16": {"heads": 3},
    "--batch: expected a multiple of 8 .4 ranks × 2 backward passes., got 12": {"accumulate": 2},
    "--every: expected at least 1 and less than inf, got 0": {"every": 0},
    "--lr: expected at least 0 and less than inf, got -1": {"lr": -1},
    "--lr: expected at least 0 and less than inf, got nan": {"lr": math.nan},
    "--seed: expected at least 0 and less than 9223372036854775808, got 1": {"seed": 10**22},
    "--context: expected at least 1 and less than .*, got": {"context": len(text())},
    "single trains on 1 rank, got 4": {"strategy": "single"},
    "mesh has rows of 3 ranks, and 4 ranks are no whole number of rows": {
        "strategy": "hsdp",
        "shard": 3,
    },
}


def test_the_text_is_the_same_with_every_python() -> None:
    known = "2a95af4ac93f5b719944030ce3769070ddf827d847cba42192afa8da989e5dc4"
    assert hashlib.sha256(text().encode()).hexdigest() == known, "recorded losses are of this text"


def test_options_that_do_not_fit_are_refused_in_a_sentence() -> None:
    for said, options in WRONG.items():
        with pytest.raises(TrainError, match=said):
            check(replace(SMALL, **options), ranks=4)


def test_bfloat16_is_close_and_halves_what_fsdp_gathers(
    alone: tuple[list[float], int],
) -> None:
    def run() -> list[list[Record]]:
        low = replace(SMALL, precision="bfloat16", steps=2)
        return [records(replace(low, strategy=name)) for name in ("ddp", "fsdp", "torch-fsdp")]

    losses, nbytes = alone
    ddp, fsdp, theirs = launch(run, 2)[0]
    for each in (ddp, fsdp, theirs):
        assert losses_of(each) == pytest.approx(losses[:2], abs=5e-3)
        assert losses_of(each) != pytest.approx(losses[:2], abs=1e-7)
    assert fsdp[0]["loss"] == pytest.approx(theirs[0]["loss"], abs=1e-5)
    assert ddp[-1]["bytes_sent"] == pytest.approx(nbytes, rel=0.01)
    assert fsdp[-1]["bytes_sent"] < 1.1 * nbytes, "half a model for each gather, one to reduce"
