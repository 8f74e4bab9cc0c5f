"""A script for torchrun: every rank tells who and where it is; rank 0 prints it, as JSON."""

import json
import os
import socket
from typing import Any

import torch
import torch.distributed as dist

import minidist


def here() -> dict[str, object]:
    """The launcher's answers in the environment, and what the rank found itself."""
    told = ["RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:  # nothing is sent
        way.connect((master, port))
        address = way.getsockname()[0]
    ranks = torch.tensor(dist.get_rank())
    minidist.all_reduce(ranks)
    return {name: int(os.environ[name]) for name in told} | {
        "MASTER_ADDR": master,
        "MASTER_PORT": port,
        "address": address,
        "backend": dist.get_backend(),
        "sum of ranks": ranks.item(),
    }


def main() -> None:
    """Collect what every rank tells, in the order of ranks, and print it once."""
    dist.init_process_group("gloo")
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, here())
    if dist.get_rank() == 0:
        print(json.dumps(everyone))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
