"""What is there: GPUs, driver, versions, and which GPU reaches which."""

import shutil
import subprocess
from collections.abc import Iterator

import torch

from benchmarks.gpu.section import Clock
from benchmarks.gpu.worlds import Where, World
from benchmarks.record import Row


def measure(where: Where, clock: Clock) -> Iterator[Row]:
    """One row; a rank looks, so that this process needs no GPU memory."""
    (row,) = World(1, where.device).launch(look, timeout=clock.share())
    yield row


def look() -> Row:
    """On a rank that sees all GPUs."""
    gpus = range(torch.cuda.device_count())
    return {
        "gpus": [_gpu(each) for each in gpus],
        "peers": [[a == b or torch.cuda.can_device_access_peer(a, b) for b in gpus] for a in gpus],
        "driver": driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": nccl(),
    }


def _gpu(index: int) -> Row:
    found = torch.cuda.get_device_properties(index)
    return {
        "name": found.name,
        "GiB": round(found.total_memory / 2**30, 1),
        "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
    }


def nccl() -> str | None:
    """The version that torch was built with."""
    if not torch.distributed.is_nccl_available():
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def driver() -> str | None:
    """The driver's version, if its tool is there."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    told = subprocess.run(asked, capture_output=True, text=True, timeout=20)
    return told.stdout.splitlines()[0].strip() if told.returncode == 0 and told.stdout else None
