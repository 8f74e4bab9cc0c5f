"""A rank's own device, whoever launched it."""

import os

import torch


def device() -> torch.device:
    """Return the device of the calling rank: its GPU, or the CPU.

    Under torchrun that is the LOCAL_RANK-th of the GPUs that it sees. Where there are fewer, each
    sees its own, as under Slurm, or they are shared, which NCCL refuses and Gloo does not.
    """
    if name := os.environ.get("MINIDIST_DEVICE"):
        return torch.device(name)
    local = os.environ.get("LOCAL_RANK")  # torchrun's; the global rank is wrong on a second node
    gpus = torch.cuda.device_count() if local is not None else 0
    return torch.device(f"cuda:{int(local or 0) % gpus}" if gpus else "cpu")
