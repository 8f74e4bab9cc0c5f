"""An answer to the capstone: hybrid sharding, shards in a node and replicas across."""

from typing import Any

import torch

import minidist
from course.chapters.capstone import task
from course.chapters.capstone.cluster import Cluster
from minidist.memory.state import FP32

PLAN = minidist.plan(
    task.sizes(), task.MACHINE, task.RANKS, batch=2, policy=FP32, foreach=False
).forecasts["hsdp"]
FORECAST = {"held": PLAN.peak, "sent": PLAN.sent, "seconds": PLAN.overlapped}


class Run:
    """The model and its optimizer on a rank, and a step of training."""

    def __init__(self, net: Any, cluster: Cluster) -> None:
        for module in [*net.blocks, net]:
            minidist.fully_shard(module, comm=(cluster.across, cluster.node))
        self.net, self.cluster = net, cluster
        self.optimizer = torch.optim.AdamW(net.parameters(), task.RATE)

    def step(self, step: int) -> float:
        """Train on this rank's part of the rows; return their mean loss."""
        rows = self.cluster.rows(step, self.cluster.rank, self.cluster.ranks)
        loss = task.loss_of(self.net, rows)
        torch.autograd.backward(loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
