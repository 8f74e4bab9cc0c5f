"""GPUs, driver and versions of this host, and which GPU can access which."""

import shutil
import subprocess
from collections.abc import Iterator

import torch

from benchmarks.harness.record import Row
from benchmarks.harness.sections import Clock
from benchmarks.harness.setups import Scope, Setup


def measure(scope: Scope, clock: Clock) -> Iterator[Row]:
    """One row, made by a rank, so that this process takes no GPU memory."""
    (row,) = Setup(1, scope.device).launch(describe, timeout=clock.left())
    yield row


def describe() -> Row:
    """On a rank that sees all GPUs."""
    gpus = range(torch.cuda.device_count())
    peers = [[a == b or torch.cuda.can_device_access_peer(a, b) for b in gpus] for a in gpus]
    with_nccl = torch.distributed.is_nccl_available()
    return {
        "gpus": [_gpu(each) for each in gpus],
        "peers": peers,
        "driver": _driver(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if with_nccl else None,
    }


def _gpu(index: int) -> Row:
    found = torch.cuda.get_device_properties(index)
    return {
        "name": found.name,
        "GiB": round(found.total_memory / 2**30, 1),
        "capability": f"{found.major}.{found.minor}",
        "multiprocessors": found.multi_processor_count,
    }


def _driver() -> str | None:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    query = [tool, "--query-gpu=driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=20)
    return done.stdout.splitlines()[0].strip() if done.returncode == 0 and done.stdout else None
