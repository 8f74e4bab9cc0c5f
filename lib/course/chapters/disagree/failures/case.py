"""A failure to look at: a function for all ranks, run until they end or are stuck for good."""

import inspect
import linecache
import os
import re
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import torch.distributed as dist
from torch import nn

import minidist
from minidist.diagnose import record, report
from minidist.diagnose.records import Rank, read
from minidist.diagnose.verdict import sentence

KITS = "minidist", "torch"
DIFFS = (Path(__file__).parent / "repairs.diff").read_text()
REPAIRS: dict[str, str] = dict(re.findall(r"^# (\w+)\n((?:[-+ ].*\n)*)", DIFFS, re.MULTILINE))


class Kit:
    """The same names from minidist or from PyTorch; and a folder that the ranks share."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        lib: Any = minidist if name == "minidist" else dist
        self.all_reduce, self.broadcast, self.barrier = lib.all_reduce, lib.broadcast, lib.barrier
        wrappers: Any = minidist if name == "minidist" else nn.parallel
        self.ddp = wrappers.DistributedDataParallel

    def fully_shard(self, net: nn.Module) -> None:
        """Wrap in FSDP."""
        if self.name == "minidist":
            minidist.fully_shard(net)
        else:
            from torch.distributed.fsdp import fully_shard  # slow to import

            fully_shard(net)


@dataclass(frozen=True)
class Seen:
    """Everything that the user of a run sees."""

    values: list[Any] | None  # one per rank, if all have returned
    error: str  # the launch's; "" if none, or if the ranks were stuck: then nothing is printed
    stuck: bool
    report: str  # `minidist.diagnose`'s

    @property
    def sentence(self) -> str:
        """The report's first line."""
        return self.report.splitlines()[0]

    @property
    def symptom(self) -> str:
        """The run's own output, without a diagnosis."""
        if self.stuck:
            return "(nothing: no error, no value, all ranks still run)"
        values = enumerate(self.values or [])
        return self.error or "\n".join(f"rank {rank}: {value}" for rank, value in values)

    def __str__(self) -> str:
        return f"{self.symptom}\ndiagnose: {self.sentence}"


@dataclass(frozen=True)
class Case:
    """A failure, and its repair in `repairs.diff`.

    Attributes:
        name: what goes wrong.
        fails: called on every rank. Its name is a number, because a traceback shows it and must not
            give the cause away.
        ranks: how many.
    """

    name: str
    fails: Callable[[Kit], Any]
    ranks: int = 2

    @property
    def repair(self) -> str:
        """The lines of `fails` that change, as a diff; "" if they are not to blame."""
        return REPAIRS.get(self.fails.__name__, "")

    def repaired(self) -> Callable[[Kit], Any]:
        """`fails` after the repair, whose lines a traceback can show."""
        assert self.repair, f"{self.name}: the repair is no change of these lines"
        head, end, body = inspect.getsource(self.fails).partition('"""\n')  # its docstring's end
        changes = self.repair.splitlines(keepends=True)
        before = "".join(line[1:] for line in changes if line[0] != "+")
        after = "".join(line[1:] for line in changes if line[0] != "-")
        assert before in dedent(body), f"{self.name}: the repair fits none of these lines"
        text = head + end + indent(dedent(body).replace(before, after), "    ")
        name, file = self.fails.__name__, f"<{self.fails.__name__}, repaired>"
        linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
        names = dict(self.fails.__globals__)
        exec(compile(text, file, "exec"), names)
        repaired: Callable[[Kit], Any] = names[name]
        return repaired

    def see(self, kit: str = "torch", *, repaired: bool = False) -> Seen:
        """Run it in one of `KITS`."""
        return see(self.repaired() if repaired else self.fails, kit, self.ranks)


def see(fn: Callable[[Kit], Any], kit: str, ranks: int) -> Seen:
    """Call `fn(Kit)` on each rank, recorded. Ranks that are stuck are diagnosed, then ended."""
    with tempfile.TemporaryDirectory() as name:
        folder, stuck, over, error = Path(name), list[str](), threading.Event(), ""
        values: list[Any] | None = None
        checked = kit == "minidist" or os.environ.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL"

        def watch() -> None:
            while not over.wait(0.1):
                with suppress(FileNotFoundError, ProcessLookupError):  # nobody has come, or is left
                    found = read(folder)
                    if len(found) == ranks and _stuck(found, checked):
                        text = report(folder)
                        os.kill(found[0].pid, signal.SIGKILL)  # the launcher ends the others
                        stuck.append(text)
                        return

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            values = minidist.launch(_recorded, ranks, fn, kit, folder, device="cpu")
        except minidist.RankError as caught:
            error = str(caught)
        finally:
            over.set()
            watcher.join()
        if stuck:
            return Seen(None, "", True, stuck[0])
        return Seen(values, error, False, report(folder))


def _recorded(fn: Callable[[Kit], Any], kit: str, folder: Path) -> Any:
    with record(folder):
        return fn(Kit(kit, folder))


def _stuck(ranks: Sequence[Rank], checked: bool) -> bool:
    """True if none will ever go on: each waits for others, has ended or stands still.

    If calls are `checked`, ranks that disagree will hear of it.
    """
    stands = [any(name == "next_batch" for _, _, name, _ in each.stack) for each in ranks]
    ended = [each.state != "running" for each in ranks]
    waits = [each.waits for each in ranks]
    if not any(waits) or not all(map(any, zip(stands, ended, waits, strict=True))):
        return False
    said = sentence(ranks)
    disagree = any(word in said for word in (" is at ", " is with "))
    absent = any(word in said for word in ("has returned", "in next_batch"))
    return absent or (disagree and not checked)  # or they all wait for a moment
