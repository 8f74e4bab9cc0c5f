"""The capstone: train the GPT on the emulated cluster, within the budget.

    torchrun --nproc-per-node 4 -m course.chapters.capstone mine.capstone

Take any part from `mine`, `from_scratch`, `minidist` or torch, as long as it talks
through the cluster's comms: `cluster.world` joins all ranks, `cluster.node` those of
this node, and `cluster.across` those that have this rank's place on each node.
`cluster.rank` is this rank's number, and `cluster.ranks` how many there are.
"""

from course.chapters.capstone.cluster import Cluster
from minidist.train.gpt import GPT

# Bytes that the fullest rank holds at the peak of a step, and that the busiest one
# sends in it; seconds of a step on the cluster's clock. Without numbers no run starts.
FORECAST = {"held": None, "sent": None, "seconds": None}


class Run:
    """The model and its optimizer on a rank, and a step of training."""

    def __init__(self, net: GPT, cluster: Cluster) -> None:
        """Spread the model, which is the same on all ranks, and make its optimizer.

        It is AdamW, with the learning rate `course.chapters.capstone.task.RATE`.
        """
        raise NotImplementedError

    def step(self, step: int) -> float:
        """Train on this rank's part of the step's rows, and return their mean loss.

        `cluster.rows(step, part, parts)` reads a part of them; parts count from 0. The
        loss is `course.chapters.capstone.task.loss_of(model, rows)`.
        """
        raise NotImplementedError
