"""The checkpoints of a run: each rank writes its share in a thread while training goes on.

A checkpoint is a folder `step-8`; `storage.py` says what is in it.

[Note: never half] The folder is called `step-8.unfinished` until all ranks have written, synced and
read again what is theirs, and the index has been written: then it is renamed, which either happens
or does not. So a process may be killed at any moment, and what is called `step-8` is whole. The one
before stays until then, and is renamed again before it is deleted.
"""

import re
import shutil
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from minidist.errors import name_ranks
from minidist.train import storage
from minidist.train.lock import Lock
from minidist.train.options import LOG, MODEL, NUMBERS, Options, TrainError, raise_on_all
from minidist.train.storage import DamagedError, Piece, Stored
from minidist.train.strategies import Part, Wrapped

MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps, besides its number of steps, which is ours
UNFINISHED, KEPT = ".unfinished", 2
PATIENCE = 10.0  # seconds until what one host has written is seen on another


class Checkpoints:
    """The checkpoints of a run, in `options.checkpoint`; all ranks call its methods together.

    Raises TrainError on all ranks if rank 0 cannot write there, or another run does.
    """

    def __init__(self, options: Options) -> None:
        assert options.checkpoint
        self.options, self.folder = options, options.checkpoint
        self._lock: Lock | None = None
        self._thread, self._pending = ThreadPoolExecutor(1), Future[None]()
        self._pending.set_result(None)
        self._group = dist.new_group(backend="gloo")  # its own, as training talks meanwhile
        newest, problem = [0], ""
        if dist.get_rank() == 0:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._lock = Lock(self.folder)
                remove_leftovers(self.folder)
                newest = [max(finished(self.folder), default=0)]
            except OSError as error:
                problem = f"--checkpoint: cannot write to {self.folder}: {error.strerror}"
            except TrainError as error:
                problem = str(error)
        self._agree(problem)
        dist.broadcast_object_list(newest, group=self._group)
        self.newest = newest[0]  # the step that a run goes on with

    def load(self, wrapped: Wrapped) -> None:
        """Give the model and its optimizer what the newest checkpoint has, if there is one."""
        if not self.newest:
            return
        parts, where = wrapped.parts(), self.folder / f"step-{self.newest}"
        for part in parts.values():
            if part.parameter.numel():
                state = {key: torch.zeros_like(part.parameter) for key in MOMENTS}
                wrapped.state[part.parameter] = {"step": torch.tensor(float(self.newest)), **state}
        problem, others = "", ""
        try:
            facts, pieces = storage.read_index(where)
            others = self._other_flags(facts, self._made(parts))
            storage.load_pieces(where, pieces, flattened(parts, wrapped.state))
        except DamagedError as error:
            problem = f"it is damaged: {error}; {self._instead_of(where.name)}"
        except TrainError as error:
            problem = f"it is of another model: {error}"
        self._agree(problem and f"cannot go on from {where}: {problem}")
        if others and self._lock:
            LOG.warning(f"{where} was made with {others}")
        wrapped.loaded()

    def save(self, step: int, wrapped: Wrapped) -> None:
        """Begin a checkpoint with which a run can go on at `step`; the one before is finished."""
        self.wait()
        parts, where = wrapped.parts(), self.folder / f"step-{step}"
        pieces = dealt_out(flattened(parts, wrapped.state), self._group)
        copies = {
            key: piece._replace(tensor=piece.tensor.to("cpu", copy=True))
            for key, piece in pieces.items()
        }
        self._pending = self._thread.submit(self._write, where, copies, self._made(parts))

    def wait(self) -> None:
        """Return when the last checkpoint is finished; TrainError on all ranks if it failed."""
        self._pending.result()

    def close(self) -> None:
        self._thread.shutdown()
        if self._lock:
            self._lock.release()

    def _agree(self, problem: str) -> None:
        try:
            raise_on_all(problem)
        except TrainError:
            self.close()
            raise

    def _made(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """The facts that tell this run from another one: flags, and the parameters' shapes."""
        flags = {f"--{name}": getattr(self.options, name) for name in (*MODEL, *NUMBERS)}
        return flags | {f"'{name}'": list(part.shape) for name, part in parts.items()}

    def _other_flags(self, theirs: dict[str, Any], ours: dict[str, Any]) -> str:
        """Flags that differ and change a run's numbers; TrainError if the model differs."""
        others = []
        for name in ours | theirs:
            there, here = (facts.get(name, "missing") for facts in (theirs, ours))
            if there != here and name[2:] in NUMBERS:
                others.append(f"{name} {there} (now {here})")
            elif there != here:
                raise TrainError(f"{name} is {there} there, {here} here")
        return ", ".join(others)

    def _instead_of(self, newest: str) -> str:
        """Advice for when the newest checkpoint is damaged."""
        for step in reversed(finished(self.folder)[:-1]):
            good = self.folder / f"step-{step}"
            with suppress(DamagedError):
                for each in storage.read_index(good)[1]:
                    storage.read_piece(good, each)
                return f"{good.name} is whole: remove {newest} to go on from there"
        return "no other checkpoint there is whole"

    def _write(self, where: Path, pieces: Mapping[str, Piece], made: dict[str, Any]) -> None:
        """The thread's work: write a checkpoint; TrainError on all ranks if one of them cannot."""
        aside, mine = where.with_name(where.name + UNFINISHED), list[Stored]()
        everyones: list[Any] = [None] * dist.get_world_size()

        def write() -> None:
            aside.mkdir(parents=True, exist_ok=True)
            mine.extend(storage.write_pieces(aside / f"rank-{dist.get_rank()}.bin", pieces.items()))

        def finish() -> None:
            see_all(aside, len(everyones))
            storage.write_index(aside, (made, [each for some in everyones for each in some]))
            storage.sync(aside)
            aside.rename(where)
            storage.sync(self.folder)
            for step in finished(self.folder)[:-KEPT]:  # the last of them has been read again
                old = self.folder / f"step-{step}"
                shutil.rmtree(old.rename(old.with_name(old.name + UNFINISHED)))

        try:
            raise_on_all(problem_of(write), self._group)
            dist.all_gather_object(everyones, mine, self._group)
            raise_on_all(problem_of(finish) if self._lock else "", self._group)
        except TrainError as error:
            shutil.rmtree(aside, ignore_errors=True)
            steps = finished(self.folder)
            there = f"step-{steps[-1]} is still there" if steps else "there is none yet"
            raise TrainError(f"cannot write {where}: {error}; {there}") from error


def problem_of(action: Callable[[], None]) -> str:
    """The problem that comes up when `action` runs; "" if none does."""
    try:
        action()
    except (OSError, ValueError, DamagedError, TrainError) as error:
        return str(error)
    return ""


def see_all(folder: Path, ranks: int) -> None:
    """Return when each rank's file is there; TrainError if one does not come."""
    deadline = time.monotonic() + PATIENCE
    while unseen := [rank for rank in range(ranks) if not (folder / f"rank-{rank}.bin").exists()]:
        if time.monotonic() > deadline:
            whose = f"the files of {name_ranks(unseen)} cannot be seen"
            raise TrainError(f"{whose}; --checkpoint must be a folder that all hosts share")
        time.sleep(0.1)


def finished(folder: Path) -> list[int]:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    matches = (re.fullmatch(r"step-(\d+)", name) for name in names)
    return sorted(int(match[1]) for match in matches if match)


def remove_leftovers(folder: Path) -> None:
    """Delete what killed runs did not finish; TrainError if anything else would go with it."""
    for left in folder.iterdir():
        if re.fullmatch(rf"step-\d+{UNFINISHED}", left.name):
            names = [each.name for each in left.iterdir()] if left.is_dir() else [left.name]
            if not all(re.fullmatch(rf"rank-\d+\.bin|{storage.INDEX}", name) for name in names):
                raise TrainError(f"--checkpoint: {left} is not of a checkpoint; move it elsewhere")
            shutil.rmtree(left)


# ---- what is saved: each tensor flattened, under its name ----


def flattened(parts: Mapping[str, Part], state: Mapping[Any, Any]) -> dict[str, Piece]:
    """The parameters and the optimizer's moments, by their key in a checkpoint."""
    pieces = {}
    for name, part in parts.items():
        tensors: dict[str, Any] = {"model": part.parameter, **state.get(part.parameter, {})}
        for kind in ("model", *MOMENTS) if part.parameter.numel() else ():
            tensor = tensors[kind].detach()
            local = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # PyTorch's FSDP
            pieces[f"{kind}/{name}"] = Piece(local.view(-1), part.start)
    return pieces


def dealt_out(pieces: Mapping[str, Piece], group: Any) -> dict[str, Piece]:
    """The pieces that this rank writes: what several ranks have, one of them writes."""
    everyones: list[Any] = [None] * dist.get_world_size()
    ranges = {(key, start, len(tensor)) for key, (tensor, start) in pieces.items()}
    dist.all_gather_object(everyones, ranges, group)
    mine = {}
    for number, each in enumerate(sorted(set().union(*everyones))):
        owners = [rank for rank, theirs in enumerate(everyones) if each in theirs]
        if owners[number % len(owners)] == dist.get_rank():
            mine[each[0]] = pieces[each[0]]
    return mine
