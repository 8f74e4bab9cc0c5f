"""Checkpoints, on torch.distributed.checkpoint: each rank writes its parts while training goes on.

A checkpoint is a folder `step-8`: a file of tensors from each rank, and an index of them. Every
tensor is there flattened, under the bare model's name, as ranges of its elements: `Part` says which
range a rank has. So what one strategy wrote on four ranks another one reads on three, and each rank
reads what it needs. What several ranks have is written by one of them.

[Note: never half] The folder is called `step-8.unfinished` until all ranks have written and synced
their files, and the index has been written: then it is renamed, which either happens or does not.
So a process may be killed at any moment, and what is called `step-8` is whole. The one before stays
until then, and is renamed again before it is deleted.

[Note: no pickles] torch.distributed.checkpoint keeps its index as a pickle, `.metadata`, and loads
it without restriction (seen in torch 2.11 and 2.13; pytorch issue 189308): whoever can write there
can run code here. So ours is JSON instead, there is nothing in a checkpoint but tensors, and those
are read by `torch.load` with `weights_only`.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from minidist.train.options import TrainError, agree
from minidist.train.strategies import Part, Wrapped

MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps, besides its number of steps, which is ours
INDEX, UNFINISHED, KEPT = "index.json", ".unfinished", 2


class Checkpoints:
    """The checkpoints of a run, in `folder`; all ranks make one, and call its methods together.

    Raises TrainError on all ranks if rank 0 cannot write there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self._pending = folder, Future[Metadata]()
        self._pending.set_result(Metadata({}))
        self._group = dist.new_group(backend="gloo")  # of its own: training talks meanwhile
        steps, problem = [list[int]()], ""
        if dist.get_rank() == 0:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                for left in folder.glob(f"step-*{UNFINISHED}"):  # by a run that was killed
                    shutil.rmtree(left)
                (folder / f"probe{UNFINISHED}").touch()
                (folder / f"probe{UNFINISHED}").unlink()
                steps = [finished(folder)]
            except OSError as error:
                problem = f"--checkpoint: cannot write to {folder}: {error.strerror}"
        agree(problem)
        dist.broadcast_object_list(steps, group=self._group)
        self.newest = max(steps[0], default=0)  # the step that a run goes on with

    def load(self, wrapped: Wrapped) -> None:
        """Give the model and its optimizer what the newest checkpoint has, if there is one."""
        if not self.newest:
            return
        parts, where = wrapped.parts(), self.folder / f"step-{self.newest}"
        for part in parts.values():
            if part.parameter.numel():
                state = {key: torch.zeros_like(part.parameter) for key in MOMENTS}
                wrapped.state[part.parameter] = {"step": torch.tensor(float(self.newest)), **state}
        metadata, problem = Metadata({}), ""
        try:
            metadata = read_index(where, shapes(parts))
        except ValueError as error:
            problem = f"cannot go on from {where}: {error}"
        agree(problem)
        pieces = flattened(parts, wrapped.state)
        try:
            load(
                {key: piece.tensor for key, piece in pieces.items()},
                storage_reader=Reader(where, metadata),
                planner=LoadPieces(pieces),
                process_group=self._group,
            )
        except CheckpointException as error:
            raise TrainError(f"cannot go on from {where}: {reason(error)}") from error
        wrapped.loaded()

    def save(self, step: int, wrapped: Wrapped) -> None:
        """Begin a checkpoint with which a run can go on at `step`; the one before is finished."""
        self.wait()
        parts, where = wrapped.parts(), self.folder / f"step-{step}"
        pieces = flattened(parts, wrapped.state)
        pending = async_save(
            {key: piece.tensor for key, piece in pieces.items()},  # copied before it returns
            storage_writer=Writer(where, shapes(parts)),
            planner=SavePieces(pieces),
            process_group=self._group,
        )
        assert isinstance(pending, Future)
        self._pending, self._step = pending, step

    def wait(self) -> None:
        """Return when the last checkpoint is finished; TrainError on all ranks if it failed."""
        try:
            self._pending.result()
        except CheckpointException as error:
            unfinished = self.folder / f"step-{self._step}{UNFINISHED}"
            shutil.rmtree(unfinished, ignore_errors=True)
            kept = f"step-{max(finished(self.folder), default=0)} is still there"
            raise TrainError(
                f"cannot write the checkpoint of step {self._step} to {self.folder}: "
                f"{reason(error)}; {kept if finished(self.folder) else 'there is none yet'}"
            ) from error


def finished(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder."""
    found = (re.fullmatch(r"step-(\d+)", path.name) for path in folder.iterdir())
    return sorted(int(match[1]) for match in found if match)


def reason(error: CheckpointException) -> str:
    """What went wrong, on the first rank on which it did, in one line."""
    rank, (problem, _) = min(error.failures.items(), key=lambda each: each[0])
    return f"rank {rank}: {str(problem).splitlines()[0] if str(problem) else repr(problem)}"


# ---- what is saved: each tensor flattened, under its name ----


class Piece(NamedTuple):
    """This rank's elements of a flattened tensor, as a 1-D view: from `start` on, of `size`."""

    tensor: Tensor
    start: int
    size: int


def flattened(parts: Mapping[str, Part], state: Mapping[Any, Any]) -> dict[str, Piece]:
    """The parameters and the optimizer's moments, by their key in a checkpoint."""
    found = {}
    for name, part in parts.items():
        tensors: dict[str, Any] = {"model": part.parameter, **state.get(part.parameter, {})}
        for kind in ("model", *MOMENTS) if part.parameter.numel() else ():
            tensor = tensors[kind].detach()
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # PyTorch's FSDP
            found[f"{kind}/{name}"] = Piece(local.view(-1), part.start, part.shape.numel())
    return found


def shapes(parts: Mapping[str, Part]) -> dict[str, list[int]]:
    """The parameters' shapes, by which another model is known."""
    return {name: list(part.shape) for name, part in parts.items()}


def chunk(start: int, numel: int) -> ChunkStorageMetadata:
    """A range of a flattened tensor."""
    return ChunkStorageMetadata(torch.Size([start]), torch.Size([numel]))


class SavePieces(DefaultSavePlanner):
    """Plans what a rank writes: its pieces, but for those that another rank writes."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> SavePlan:
        """What this rank has; afterwards duplicates are dropped, and gaps refused."""
        items = []
        for key, (tensor, start, size) in self.pieces.items():
            here, properties = chunk(start, len(tensor)), TensorProperties(tensor.dtype)
            data = TensorWriteData(here, properties, torch.Size([size]))
            index = MetadataIndex(key, here.offsets)
            items.append(WriteItem(index, WriteItemType.SHARD, tensor_data=data))
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Tensor:
        """The copy of a planned piece."""
        tensor: Tensor = self.state_dict[index.fqn]
        return tensor


class LoadPieces(DefaultLoadPlanner):
    """Plans what a rank reads: the pieces, whoever wrote them, of which its own consist."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.pieces = pieces

    def create_local_plan(self) -> LoadPlan:
        """What to read for each of this rank's pieces; ValueError if that leaves a gap."""
        assert self.metadata
        plan, nothing = [], TensorStorageMetadata(TensorProperties(), torch.Size(), [])
        for key, (tensor, start, _) in self.pieces.items():
            there: Any = self.metadata.state_dict_metadata.get(key, nothing)
            items = create_read_items_for_chunk_list(key, there, [chunk(start, len(tensor))])
            if sum(item.lengths[0] for item in items) != len(tensor):
                raise ValueError(f"it is damaged: a part of '{key}' is not in its index")
            plan += items
        return LoadPlan(plan)

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """The tensor of a planned piece."""
        return self.pieces[index.fqn].tensor


class Writer(FileSystemWriter):
    """Writes to a folder that is not yet called what it will be: see [Note: never half]."""

    def __init__(self, folder: Path, shapes: Mapping[str, list[int]]) -> None:
        super().__init__(folder.with_name(folder.name + UNFINISHED))
        self.aside, self.folder, self.shapes = Path(self.path), folder, shapes

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        """Write this rank's file; OSError says what the system said, which torch.save hides."""
        try:
            return super().write_data(plan, planner)
        except RuntimeError as error:
            raise error.__context__ or error from None

    def finish(self, metadata: Metadata, results: list[Any]) -> None:
        """On rank 0, when all ranks have written their files: write the index, and rename."""
        pieces = []
        for written in (each for of_rank in results for each in of_rank):
            stored: Any = metadata.state_dict_metadata[written.index.fqn]
            [start], [numel] = written.index.offset, stored.chunks[written.index.index].sizes
            at = written.storage_data
            pieces.append([written.index.fqn, start, numel, at.relative_path, at.offset, at.length])
        with (self.aside / INDEX).open("w") as file:
            json.dump({"shapes": self.shapes, "pieces": pieces}, file)
            file.flush()
            os.fsync(file.fileno())
        sync(self.aside)
        self.aside.rename(self.folder)
        sync(self.folder.parent)
        for step in finished(self.folder.parent)[:-KEPT]:
            old = self.folder.with_name(f"step-{step}")
            shutil.rmtree(old.rename(old.with_name(old.name + UNFINISHED)))


def sync(folder: Path) -> None:
    """Return when the names in a folder are on the disk, not only in the system's memory."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Reader(FileSystemReader):
    """Reads the files of a checkpoint whose index has been read: see [Note: no pickles]."""

    def __init__(self, folder: Path, index: Metadata) -> None:
        super().__init__(folder)
        self.index = index

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """The index."""
        return self.index


def read_index(folder: Path, shapes: Mapping[str, list[int]]) -> Metadata:
    """What lies where; ValueError if it is another model's, or files are missing or cut off."""
    try:
        index = json.loads((folder / INDEX).read_text())
        theirs, pieces = index["shapes"], index["pieces"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"it is damaged: {INDEX} cannot be read ({error})") from error
    for name in [*shapes, *theirs]:
        there, here = theirs.get(name, "missing"), shapes.get(name, "missing")
        if there != here:
            raise ValueError(f"it is of another model: '{name}' is {there} there, {here} here")
    found, places = dict[str, Any](), {}
    for key, start, numel, file, offset, length in pieces:
        path = folder / Path(file).name  # nothing outside the folder
        if not path.exists() or path.stat().st_size < offset + length:
            raise ValueError(f"it is damaged: {path.name} is missing or cut off")
        stored = TensorStorageMetadata(TensorProperties(), torch.Size(), [])
        found.setdefault(key, stored).chunks.append(chunk(start, numel))
        places[MetadataIndex(key, (start,))] = SimpleNamespace(
            relative_path=path.name, offset=offset, length=length, transform_descriptors=None
        )
    return Metadata(found, storage_data=places)
