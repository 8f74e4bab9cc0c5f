"""PyTorch's own flight recorder, over Gloo.

It records Gloo's calls as it does NCCL's, in the memory of each rank. NCCL's watchdog writes them
to a file when a call times out; Gloo has no watchdog, so here a thread writes them.
"""

import io
import logging
import os
import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

PREFIX = "torch_"  # the files' names: this, then the rank
EVERY = 0.3  # seconds
c10d: Any = _distributed_c10d


@contextmanager
def torch_record(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the `with` block, write what PyTorch has recorded to `folder`, again and again."""
    over = threading.Event()
    path = Path(folder, f"{PREFIX}{dist.get_rank()}")

    def write() -> None:
        while not over.wait(EVERY):
            aside = path.with_name(f"{dist.get_rank()}.new")
            aside.write_bytes(pickle.dumps(dump()))
            aside.replace(path)

    threading.Thread(target=write, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def dump() -> dict[str, Any]:
    """This rank's calls, and the groups that they were made in.

    Gloo leaves the groups' members out, and `torchfrtrace` fails on a call in a group that it does
    not know.
    """
    found: dict[str, Any] = pickle.loads(c10d._dump_fr_trace())
    known: Any = dist.distributed_c10d._world.pg_map
    groups = {group.group_name: str(dist.get_process_group_ranks(group)) for group in known}
    for call in found["entries"]:
        name, about = call["process_group"]
        found["pg_config"][name] = {"name": name, "desc": about, "ranks": groups[name]}
    return found


def last_call(folder: str | os.PathLike[str], rank: int) -> dict[str, Any]:
    """The rank's last entry."""
    found = pickle.loads(Path(folder, f"{PREFIX}{rank}").read_bytes())
    return dict(found["entries"][-1])


def torchfrtrace(folder: str | os.PathLike[str]) -> str:
    """The output of `torchfrtrace FOLDER -p torch_`, without another process.

    It compares all ranks with the first file that it reads: here rank 0's, not whichever the file
    system lists first.
    """
    from torch.distributed.flight_recorder.components import builder, config_manager, loader

    files = sorted(Path(folder).glob(f"{PREFIX}*"))
    dumps: dict[str, Any] = {file.name: loader.read_dump(PREFIX, str(file)) for file in files}
    said, log = io.StringIO(), logging.getLogger("Flight Recorder")
    before, log.handlers = log.handlers, [logging.StreamHandler(said)]
    try:
        arguments = config_manager.JobConfig().parse_args([str(folder)])
        builder.build_db(dumps, arguments, dumps[files[0].name]["version"])
    except AssertionError as error:  # torch 2.11 reads NCCL's records alone
        return f"torchfrtrace of torch {torch.__version__} does not read these: {error}"
    finally:
        log.handlers = before
    return said.getvalue()
