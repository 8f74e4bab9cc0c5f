"""Checkpoints: a run goes on as if it had never stopped, wherever and however it goes on."""

import json
import os
import resource
import shutil
import signal
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minidist import full_state_dict, launch
from minidist.train import checkpoint
from minidist.train.__main__ import stopped_by_signals
from minidist.train.loop import Training
from minidist.train.options import LOG, Options, TrainError
from minidist.train.storage import (
    DamagedError,
    Piece,
    Stored,
    checksum,
    load_pieces,
    read_index,
    read_piece,
    write_index,
)
from tests.train.test_strategies import SMALL, losses_of, records

RUN = replace(SMALL, steps=4, every=2)


def losses(**changes: Any) -> list[float]:
    return losses_of(records(replace(RUN, **changes)))


def named(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("step-*"))


def test_another_strategy_on_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    went: list[float] = []
    chain = [(4, "ddp"), (2, "fsdp"), (3, "zero2"), (1, "single")]
    for number, (ranks, strategy) in enumerate(chain, start=1):

        def run(strategy: str = strategy, steps: int = 2 * number) -> list[float]:
            return losses(strategy=strategy, steps=steps, every=100, checkpoint=tmp_path)

        went += launch(run, ranks)[0]
        assert len(went) == 2 * number
    want = launch(lambda: losses(strategy="single", steps=8), 1)[0]
    assert went == pytest.approx(want, abs=5e-5)
    assert named(tmp_path) == ["step-6", "step-8"], "the last two"


def refused(options: Options) -> str:
    with pytest.raises(TrainError) as caught:
        Training(options)
    return str(caught.value)


def test_what_is_no_checkpoint_of_this_model_is_refused_on_all_ranks_and_left_alone(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "file").touch()
    folder = tmp_path / "run"
    options = replace(RUN, strategy="fsdp", checkpoint=folder)

    def run() -> tuple[list[str], list[str]]:
        records(options)
        said = [
            refused(replace(options, checkpoint=file / "in it")),
            refused(replace(options, heads=1)),
            refused(replace(options, layers=1)),
        ]
        damaged = []
        for harm in HARM:
            copy = tmp_path / harm.__name__
            if dist.get_rank() == 0:
                shutil.copytree(folder, copy)
                harm(copy / "step-4")
            dist.barrier()
            damaged.append(refused(replace(options, checkpoint=copy)))
            dist.barrier()
            assert named(copy) == ["step-2", "step-4"]
        said.append(str(len(records(replace(options, steps=6)))))
        return said, damaged

    first, second = launch(run, 2)
    assert first == second
    said, damaged = first
    where = f"rank 0: cannot go on from {folder / 'step-4'}: it is of another model: --"
    assert said == [
        f"rank 0: --checkpoint: cannot write to {file / 'in it'}: Not a directory",
        f"{where}heads is 2 there, 1 here",
        f"{where}layers is 2 there, 1 here",
        "2",  # the real one goes on
    ]
    for (harm, expected), got in zip(HARM.items(), damaged, strict=True):
        start = f": cannot go on from {tmp_path / harm.__name__ / 'step-4'}: it is damaged: "
        assert f"{start}{expected}" in got
        assert got.endswith("; step-2 is whole: remove step-4 to go on from there")
        assert "weights_only" not in got


def lost(step: Path) -> None:
    (step / "rank-1.bin").unlink()


def cut(step: Path) -> None:
    file = step / "rank-0.bin"
    file.write_bytes(file.read_bytes()[:-100])


def flipped(step: Path) -> None:
    file = step / "rank-1.bin"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def emptied(step: Path) -> None:
    shutil.rmtree(step)
    step.mkdir()


def half_an_index(step: Path) -> None:
    (step / "index.json").write_text('{"checksum"')


def another_index(step: Path) -> None:
    (step / "index.json").write_text("[1]")


def edited(step: Path) -> None:
    text = (step / "index.json").read_text()
    (step / "index.json").write_text(text.replace('"--lr": 0.001', '"--lr": 0.002'))


def gap(step: Path) -> None:
    rewrite(step, lambda pieces: pieces.pop(0))


def twice(step: Path) -> None:
    rewrite(step, lambda pieces: pieces.append(pieces[0]))


def swapped(step: Path) -> None:
    """Two pieces of one size, each with the other's place in the file."""

    def swap(pieces: list[Any]) -> None:
        one, other = (
            next(n for n, each in enumerate(pieces) if each[0] == f"{kind}/token.weight")
            for kind in ("exp_avg", "exp_avg_sq")
        )
        pieces[one][4:], pieces[other][4:] = pieces[other][4:], pieces[one][4:]

    rewrite(step, swap)


def of_another_dtype(step: Path) -> None:
    def change(pieces: list[Any]) -> None:
        key, start, numel, _, file, offset, _ = pieces[0]
        data = memoryview((step / file).read_bytes())[offset : offset + 4 * numel]
        pieces[0][3:] = ["torch.int32", file, offset, checksum(key, start, "torch.int32", data)]

    rewrite(step, change)


def rewrite(step: Path, change: Callable[[list[Any]], object]) -> None:
    """Change the list of pieces as nobody would by accident, with a checksum that is right."""
    made, stored = read_index(step)
    change(pieces := [list(each) for each in stored])
    write_index(step, (made, [Stored(*each) for each in pieces]))


HARM = {
    lost: "rank-1.bin cannot be read (No such file or directory)",
    cut: "rank-0.bin ends within '",
    flipped: "'",
    emptied: "index.json cannot be read (No such file or directory)",
    half_an_index: "index.json is not as it was written (",
    another_index: "index.json is not as it was written (",
    edited: "index.json is not as it was written (it has another checksum)",
    gap: "index.json does not have each element of '",
    twice: "index.json does not have each element of '",
    swapped: "'exp_avg/token.weight' in rank-",
    of_another_dtype: "'",
}


def test_an_index_that_somebody_has_written_is_damaged_in_a_sentence(tmp_path: Path) -> None:
    good = ["model/w", 0, 4, "torch.float32", "rank-0.bin", 0, 0]
    other = (None, -1, 1.5, "x", [], {}, 10**30, 2**62, True, "\0")
    rows = [[*good[:i], each, *good[i + 1 :]] for i in range(len(good)) for each in other]
    indices: list[Any] = [[{}, [row]] for row in [*rows, [], [1], "abc", None, 5]]
    indices += [[facts, [good]] for facts in (None, 5, "x", [5])]
    (tmp_path / "rank-0.bin").write_bytes(bytes(16))
    offenders = []
    for index in indices:
        text = {"checksum": zlib.crc32(json.dumps(index).encode()), "index": index}
        (tmp_path / "index.json").write_text(json.dumps(text))
        try:
            pieces = read_index(tmp_path)[1]
            load_pieces(tmp_path, pieces, {"model/w": Piece(torch.zeros(4), 0)})
            read_piece(tmp_path, pieces[0])
            offenders.append(f"{index}: taken")
        except DamagedError:
            continue
        except Exception as error:
            offenders.append(f"{index}: {error!r}")
    assert not offenders, "\n".join(offenders)


def test_a_full_disk_ends_the_run_on_all_ranks_and_the_last_checkpoint_stays(
    tmp_path: Path,
) -> None:
    options = replace(RUN, strategy="ddp", checkpoint=tmp_path)

    def run() -> list[Any]:
        training = Training(options)
        done, run = list[float](), iter(training)
        for _ in range(3):
            done.append(next(run)["loss"])
        training.checkpoints.wait()
        if dist.get_rank() == 1:  # no file may grow beyond
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        done.append(next(run)["loss"])
        with pytest.raises(TrainError) as caught:
            next(run)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        there = named(tmp_path)
        dist.barrier()
        return [str(caught.value), there, done[2:], losses(strategy="ddp", checkpoint=tmp_path)]

    for said, there, went, again in launch(run, 2):
        assert said.startswith(f"cannot write {tmp_path / 'step-4'}: rank 1: ")
        assert said.endswith("File too large; step-2 is still there")
        assert there == ["step-2"]
        assert again == went


def test_what_is_written_is_the_state_when_save_was_called_and_named_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[Any]:
        from minidist.train import storage

        training = Training(replace(RUN, strategy="zero2", checkpoint=tmp_path))
        seen = list[list[str]]()
        write_index = storage.write_index

        def watched(*args: Any) -> None:
            write_index(*args)
            seen.append(named(tmp_path))

        monkeypatch.setattr(storage, "write_index", watched)
        training.step(0)
        saved = [each.detach().clone() for each in training.wrapped.model.parameters()]
        training.checkpoints.save(1, training.wrapped)
        training.step(1)  # while it is written
        training.checkpoints.wait()
        seen.append(named(tmp_path))
        again = Training(replace(RUN, strategy="fsdp", checkpoint=tmp_path))

        now = list(full_state_dict(again.wrapped.model).values())
        return [again.first, list(map(torch.equal, now, saved)), seen]

    (first, equal, seen), (_, others, _) = launch(run, 2)
    assert first == 1
    assert all(equal + others)
    assert seen == [["step-1.unfinished"], ["step-1"]]


def test_a_run_that_diverges_ends_and_its_last_good_checkpoint_stays(tmp_path: Path) -> None:
    def run() -> list[str]:
        options = replace(RUN, strategy="single", checkpoint=tmp_path)
        records(replace(options, steps=2))
        training, said = Training(options), list[str]()
        training.step(2)
        with torch.no_grad():
            next(training.wrapped.model.parameters())[0, 0] = torch.nan
        training.checkpoints.save(3, training.wrapped)
        for action in (training.checkpoints.wait, lambda: records(replace(options, lr=1e30))):
            with pytest.raises(TrainError) as caught:
                action()
            said.append(str(caught.value))
        return said

    [[said, then]] = launch(run, 1)
    problem = "rank 0: 'model/token.weight' has elements that are infinite or NaN"
    assert said == f"cannot write {tmp_path / 'step-3'}: {problem}; step-2 is still there"
    assert then == "the loss of step 3 is nan; try a smaller --lr"
    assert named(tmp_path) == ["step-2"]


def test_bytes_that_a_disk_does_not_keep_are_noticed_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> str:
        options = replace(RUN, strategy="single", steps=3, every=1, checkpoint=tmp_path)
        fsync = os.fsync

        def loses(descriptor: int) -> None:
            fsync(descriptor)
            if "step-3" in (name := os.readlink(f"/proc/self/fd/{descriptor}")) and "rank" in name:
                os.truncate(name, os.path.getsize(name) - 1)

        monkeypatch.setattr(os, "fsync", loses)
        with pytest.raises(TrainError) as caught:
            records(options)
        return str(caught.value)

    [said] = launch(run, 1)
    assert said.endswith("'; step-2 is still there")
    assert "rank-0.bin ends within '" in said
    assert named(tmp_path) == ["step-1", "step-2"]


def test_folders_that_hosts_do_not_share_end_the_run_at_its_first_save(tmp_path: Path) -> None:
    def run() -> str:
        checkpoint.PATIENCE = 0.2
        (folder := tmp_path / f"host-{dist.get_rank() % 2}").mkdir(exist_ok=True)
        with pytest.raises(TrainError) as caught:
            records(replace(RUN, strategy="ddp", checkpoint=folder))
        return str(caught.value)

    for rank, said in enumerate(launch(run, 4)):
        start = f"cannot write {tmp_path / f'host-{rank % 2}' / 'step-2'}: rank 0: the files of "
        why = "ranks 1, 3 cannot be seen; --checkpoint must be a folder that all hosts share"
        assert said == f"{start}{why}; there is none yet"
    assert not list(tmp_path.glob("*/*"))


def test_ranks_with_other_flags_are_named_before_they_train(tmp_path: Path) -> None:
    """Else they would train on other rows, wait for each other, or raise one by one."""
    changes = {"strategy": "zero1", "batch": 24, "steps": 3, "lr": 0.5, "checkpoint": tmp_path}

    def run() -> list[str]:
        said, odd = list[str](), dist.get_rank() == 1
        for name, other in changes.items():
            mine: dict[str, Any] = {name: other} if odd else {}
            said.append(refused(replace(RUN, **mine)))
        return said

    first, second = launch(run, 2)
    start = "expected the same on all ranks, got"
    assert first == second
    assert first == [
        f"--strategy: {start} ddp on rank 0, zero1 on rank 1",
        f"--batch: {start} 12 on rank 0, 24 on rank 1",
        f"--steps: {start} 4 on rank 0, 3 on rank 1",
        f"--lr: {start} 0.001 on rank 0, 0.5 on rank 1",
        f"--checkpoint: {start} none on rank 0, a folder on rank 1",
    ]


def test_only_what_a_killed_run_left_is_deleted(tmp_path: Path) -> None:
    def run() -> list[str]:
        options = replace(RUN, strategy="single", steps=2, checkpoint=tmp_path)
        said = refused(options)
        (tmp_path / "step-4.unfinished" / "notes").unlink()
        records(options)
        return [said, *sorted(path.name for path in tmp_path.iterdir())]

    for path in ("step-1.unfinished", "step-4.unfinished", "step-x.unfinished", "my.unfinished"):
        (tmp_path / path).mkdir()
        (tmp_path / path / "rank-0.bin").touch()
    (tmp_path / "step-4.unfinished" / "notes").touch()
    [[said, *left]] = launch(run, 1)
    where = tmp_path / "step-4.unfinished"
    assert said == f"rank 0: --checkpoint: {where} is not of a checkpoint; move it elsewhere"
    assert left == ["my.unfinished", "step-2", "step-x.unfinished"]


def test_a_run_whose_folder_is_deleted_goes_on(tmp_path: Path) -> None:
    def run() -> None:
        training = Training(replace(RUN, strategy="single", checkpoint=tmp_path / "run"))
        for record in training:
            if record["step"] == 3:
                training.checkpoints.wait()
                shutil.rmtree(tmp_path / "run")

    launch(run, 1)
    assert named(tmp_path / "run") == ["step-4"]


def test_other_flags_that_change_the_run_are_told(tmp_path: Path) -> None:
    def run() -> list[str]:
        options = replace(RUN, strategy="ddp", checkpoint=tmp_path)
        records(options)
        said = list[str]()
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setattr(LOG, "warning", said.append)
        changes = {"seed": 1, "lr": 0.1, "batch": 24, "clip": 1.0, "strategy": "zero1"}
        records(replace(options, steps=4, every=1, **changes))
        return said

    first, second = launch(run, 2)
    flags = "--batch 12 (now 24), --lr 0.001 (now 0.1), --seed 0 (now 1), --clip 0.2 (now 1.0)"
    assert first == [f"{tmp_path / 'step-4'} was made with {flags}"]
    assert second == []


def test_a_signal_to_any_rank_ends_the_run_on_all_with_a_checkpoint(tmp_path: Path) -> None:
    def run(number: int) -> list[int]:
        training = Training(
            replace(RUN, strategy="fsdp", steps=50, every=100, checkpoint=tmp_path / str(number))
        )
        steps = []
        with stopped_by_signals(training):
            for record in training:
                steps.append(record["step"])
                if record["step"] == 1 and dist.get_rank() == 1:
                    os.kill(os.getpid(), number)
        assert signal.getsignal(number) == signal.SIG_DFL
        return steps

    for number in (signal.SIGTERM, signal.SIGUSR1):
        assert launch(run, 2, int(number)) == [[0, 1, 2]] * 2
        assert named(tmp_path / str(int(number))) == ["step-3"]
