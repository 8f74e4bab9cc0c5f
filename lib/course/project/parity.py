"""Does it train as one process with the whole batch does?"""

import copy
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import AdamW

from course.project.milestones import RATE, Make, Milestone, Trained
from course.project.models import ROWS, WHY, Loss
from course.verdict import Wrong
from minidist.comm.ours import Ours

STEPS = 4
CAP = 2e-4  # MiB: several buckets of each model
TOLERANCE = 1e-9  # in float64, where only the order of sums can make a difference


def check_parity(
    milestone: Milestone,
    kind: type,
    model_name: str,
    build: Callable[[], nn.Module],
    loss: Loss,
    optimizer: Make = AdamW,
) -> None:
    """On a rank: train a model some steps, with rank 0's first weights and this rank's rows.

    Raises:
        Wrong: the loss, or a weight, is not that of one process.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    where = f"{model_name}, {ranks} ranks"
    torch.manual_seed(3)
    net = build()
    alone = copy.deepcopy(net)
    with torch.no_grad():
        buffers = [] if milestone.file == "zero" else net.buffers()  # it is given parameters alone
        for tensor in [*net.parameters(), *buffers]:
            tensor.add_(rank)  # rank 0's must win
    trained = milestone.train(kind, net, Ours(algorithm="ring"), CAP, optimizer)
    right = Trained(alone, optimizer(alone.parameters(), lr=RATE))
    mine = slice(rank * ROWS // ranks, (rank + 1) * ROWS // ranks)
    for step in range(STEPS):
        own = loss(trained.model, step, mine)
        trained.step(own)
        whole = loss(alone, step, slice(None))
        right.step(whole)
        mean = own.detach() / ranks
        dist.all_reduce(mean)
        what = f"{where}, step {step}: the mean loss of all ranks"
        compare(what, mean, whole.detach(), WHY.get(model_name, ""))
    for name, weight in trained.weights().items():
        what = f"{where}, after {STEPS} steps: {name}"
        compare(what, weight.detach(), alone.get_parameter(name).detach())
    for name, buffer in net.named_buffers():
        compare(f"{where}: {name}", buffer, alone.get_buffer(name))


def compare(what: str, found: Tensor, right: Tensor, why: str = "") -> None:
    if found.shape != right.shape:
        raise Wrong(f"{what} has shape {list(found.shape)}, expected {list(right.shape)}.")
    if not torch.allclose(found, right, TOLERANCE, TOLERANCE):
        off = (found - right).abs().max().item()
        raise Wrong(
            f"{what} is off by {off:.2g} from that of one process with the whole batch.{why}"
        )
