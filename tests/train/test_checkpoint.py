"""Checkpoints: a run goes on as if it had never stopped, wherever and however it goes on."""

import json
import pickle
import resource
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from minidist import full_state_dict, launch
from minidist.train.loop import Training
from minidist.train.options import Options, TrainError
from tests.train.test_strategies import SMALL, losses_of, records

RUN = replace(SMALL, steps=4, every=2)


def losses(**changes: Any) -> list[float]:
    return losses_of(records(replace(RUN, **changes)))


def named(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_another_strategy_on_another_number_of_ranks_goes_on(tmp_path: Path) -> None:
    went: list[float] = []
    chain = [(4, "ddp"), (2, "fsdp"), (3, "zero2"), (1, "single")]
    for number, (ranks, strategy) in enumerate(chain, start=1):

        def run(strategy: str = strategy, steps: int = 2 * number) -> list[float]:
            return losses(strategy=strategy, steps=steps, checkpoint=tmp_path)

        went += launch(run, ranks)[0]
        assert len(went) == 2 * number
    want = launch(lambda: losses(strategy="single", steps=8), 1)[0]
    assert went == pytest.approx(want, abs=5e-6)
    assert named(tmp_path) == ["step-6", "step-8"], "the last two"


def refused(options: Options) -> str:
    with pytest.raises(TrainError) as caught:
        Training(options)
    return str(caught.value)


class Evil:
    def __reduce__(self) -> Any:
        return exec, ("raise SystemExit('arbitrary code has run')",)


def test_what_is_no_checkpoint_of_this_model_is_refused_on_all_ranks_and_left_alone(
    tmp_path: Path,
) -> None:
    (file := tmp_path / "file").touch()
    folder = tmp_path / "run"
    options = replace(RUN, strategy="fsdp", checkpoint=folder)

    def run() -> list[str]:
        records(replace(options, steps=2))
        said = [
            refused(replace(options, checkpoint=file / "in it")),
            refused(replace(options, layers=1)),
            refused(replace(options, context=4)),
        ]
        for harm in HARM:
            if dist.get_rank() == 0:
                shutil.copytree(folder, copy := tmp_path / harm.__name__)
                harm(copy / "step-2")
            dist.barrier()
            said.append(refused(replace(options, checkpoint=tmp_path / harm.__name__)))
        said.append(str(len(records(options))))
        return said

    first, second = launch(run, 2)
    assert first == second
    where = f"rank 0: cannot go on from {folder / 'step-2'}: it is of another model: "
    assert first[:3] == [
        f"rank 0: --checkpoint: cannot write to {file / 'in it'}: Not a directory",
        f"{where}'blocks.1.norm.weight' is [16] there, missing here",
        f"{where}'position.weight' is [8, 16] there, [4, 16] here",
    ]
    lost, cut, no_index, evil, gap = first[3:-1]
    assert "it is damaged: __1_0.distcp is missing or cut off" in lost
    assert "it is damaged: __0_0.distcp is missing or cut off" in cut
    assert "it is damaged: index.json cannot be read" in no_index
    assert "Weights only load failed" in evil
    assert "a part of 'model/token.weight' is not in its index" in gap
    assert first[-1] == "2", "and the real one goes on"


def lost(step: Path) -> None:
    (step / "__1_0.distcp").unlink()


def cut(step: Path) -> None:
    file = step / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-100])


def no_index(step: Path) -> None:
    (step / "index.json").write_text('{"shapes"')


def evil(step: Path) -> None:
    """A pickle in place of a tensor, and one in place of what PyTorch calls the metadata."""
    bad, file = pickle.dumps(Evil()), step / "__1_0.distcp"
    file.write_bytes(bad + file.read_bytes()[len(bad) :])
    (step / ".metadata").write_bytes(bad)


def gap(step: Path) -> None:
    index = json.loads((step / "index.json").read_text())
    del index["pieces"][0]
    (step / "index.json").write_text(json.dumps(index))


HARM = (lost, cut, no_index, evil, gap)


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
        assert said.startswith(f"cannot write the checkpoint of step 4 to {tmp_path}: rank 1: ")
        assert said.endswith("File too large; step-2 is still there")
        assert there == ["step-2"]
        assert again == went


def test_what_is_written_is_the_state_when_save_was_called_and_named_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> list[Any]:
        from minidist.train import checkpoint

        training = Training(replace(RUN, strategy="zero2", checkpoint=tmp_path))
        seen = list[list[str]]()
        finish = checkpoint.Writer.finish

        def watched(self: Any, **results: Any) -> None:
            seen.append(named(tmp_path))
            finish(self, **results)
            seen.append(named(tmp_path))

        monkeypatch.setattr(checkpoint.Writer, "finish", watched)
        training.step(0)
        saved = [each.detach().clone() for each in training.wrapped.model.parameters()]
        training.checkpoints.save(1, training.wrapped)
        training.step(1)  # while it is written
        training.checkpoints.wait()
        again = Training(replace(RUN, strategy="fsdp", checkpoint=tmp_path))

        now = list(full_state_dict(again.wrapped.model).values())
        return [again.first, list(map(torch.equal, now, saved)), seen]

    (first, equal, seen), (_, others, unseen) = launch(run, 2)
    assert first == 1
    assert all(equal + others)
    assert seen == [["step-1.unfinished"], ["step-1"]]
    assert unseen == []
