"""`Muon`, which needs whole matrices, for parameters of which each rank has some rows.

[Note: owners] Momentum treats each element alone, so it stays on the shards. What it makes of a
gradient is orthogonalized as a whole matrix. So each matrix has an owner: all ranks send it their
rows, and get the same rows of the result. That is one all-to-all each way for all matrices, in
bf16, in which Newton-Schulz begins and ends, so that nothing is lost. Of each parameter
4 (N - 1) / N bytes travel in all: each of N ranks sends an N-th of that.

[Note: as a unit] What a rank sends an owner is its shard of that owner's matrices, padded as those
of a unit are. So what an owner has is what a unit gathers, and it unpacks and packs it likewise.

After Jordan et al. (2024), *Muon: An optimizer for hidden layers in neural networks*, and
`torch.optim.Muon`, whose numbers these are.
"""

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.nn import Parameter
from torch.utils._pytree import tree_map

from minidist.comm.comm import Comm
from minidist.formulas.muon import owners
from minidist.parallel.fsdp import checks
from minidist.parallel.fsdp.shard import Shard, no_torch_function
from minidist.parallel.sharding.layouts import RowLayout

Group = dict[str, Any]


class Matrix(NamedTuple):
    parameter: Parameter  # plain, or this rank's rows
    shape: torch.Size  # of the whole one
    group: Group  # of `param_groups`
    comm: Comm | None  # between the ranks that have its rows


class Muon(torch.optim.Muon):
    """`torch.optim.Muon`, also for matrices that `fully_shard` has split: the same steps.

    Each rank keeps the momentum of its rows. A matrix's update is gathered on one rank, its owner,
    orthogonalized there, and scattered; under hybrid sharding in each row of ranks once.

    Args:
        params: matrices, alike on all ranks; no group can be added later. All else is for an AdamW,
            and so, by custom, are embedding and head.
        arguments: torch's, with its defaults: lr, weight_decay, momentum, nesterov,
            ns_coefficients, eps, ns_steps, adjust_lr_fn.

    Raises:
        TypeError, ValueError: of this rank's arguments; it names the rank, and the parameter.
        MismatchError: the ranks' parameters differ; or, in a step, which of them have a gradient,
            or hyperparameters. Always checked, before anything is sent.
    """

    __signature__ = signature(torch.optim.Muon)
    gathers_shards = True  # so it is not refused as torch's is

    def __init__(self, params: Any, *args: Any, **arguments: Any) -> None:
        given = tree_map(lambda each: list(each) if isinstance(each, Iterator) else each, [*params])
        problem: Exception | None = None
        try:
            super().__init__(given, *args, **arguments)
        except (TypeError, ValueError) as error:
            problem = error
        self._comms = checks.agree_on_matrices(given, problem)

    def add_param_group(self, param_group: Group) -> None:
        if hasattr(self, "_comms"):
            raise NotImplementedError("Muon.add_param_group: build it anew, with all groups")
        super().add_param_group(param_group)

    @eager
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step; every rank must call it. A closure does what it does in torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        checks.agree_on_step(self.param_groups, self._comms)
        between: dict[object, list[Matrix]] = {}  # group of ranks → what they share
        for group in self.param_groups:
            for each in group["params"]:
                if each.grad is not None:
                    comm = each.comms[0] if isinstance(each, Shard) else None
                    shape = each.whole_shape if comm else each.shape
                    key = (comm.group,) if comm else None
                    between.setdefault(key, []).append(Matrix(each, shape, group, comm))
        with no_torch_function():
            for matrices in between.values():
                for each, update in self._orthogonalized(matrices, matrices[0].comm):
                    lr = float(each.group["lr"])
                    each.parameter.mul_(1 - lr * each.group["weight_decay"])
                    each.parameter.add_(update, alpha=-lr * scale(each))
        return loss

    def _orthogonalized(
        self, matrices: Sequence[Matrix], comm: Comm | None
    ) -> list[tuple[Matrix, Tensor]]:
        """Each matrix with this rank's rows of its orthogonal update: see [Note: owners]."""
        if comm is None:
            return [(each, orthogonalize(self._momentum(each), each.group)) for each in matrices]
        owned: list[list[Matrix]] = [[] for _ in range(comm.ranks)]
        owner_of = owners([each.shape for each in matrices], comm.ranks)
        for each, owner in zip(matrices, owner_of, strict=True):
            owned[owner].append(each)
        layouts = [RowLayout([m.shape for m in some], comm.ranks, comm.rank) for some in owned]
        sizes = [layout.shard_numel for layout in layouts]
        device = matrices[0].parameter.device
        mine = torch.zeros(sum(sizes), dtype=torch.bfloat16, device=device)
        updates: list[tuple[Matrix, Tensor]] = []
        for some, layout, shard in zip(owned, layouts, torch.split(mine, sizes), strict=True):
            for each, piece in zip(some, layout.pieces(shard), strict=True):
                updates.append((each, piece.copy_(self._momentum(each))))

        own, own_sizes = layouts[comm.rank], [sizes[comm.rank]] * comm.ranks
        table = mine.new_empty(own.padded)
        comm.all_to_all(table, mine, own_sizes, sizes)
        whole = own.tensors(table)
        for place, each in enumerate(owned[comm.rank]):
            whole[place] = orthogonalize(whole[place], each.group)
        own.pack(whole, table)
        comm.all_to_all(mine, table, sizes, own_sizes)
        return updates

    def _momentum(self, matrix: Matrix) -> Tensor:
        gradient: Any = matrix.parameter.grad
        state, momentum = self.state[matrix.parameter], matrix.group["momentum"]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        mean: Tensor = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
        return gradient.lerp(mean, momentum) if matrix.group["nesterov"] else mean


def orthogonalize(matrix: Tensor, group: Group) -> Tensor:
    """Return about U V^T of U S V^T, by Newton-Schulz in bf16: of the short side the square."""
    a, b, c = group["ns_coefficients"]
    tall = matrix.size(0) > matrix.size(1)
    x = (matrix.mT if tall else matrix).bfloat16()
    x = x / x.norm().clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def scale(matrix: Matrix) -> float:
    rows, columns = matrix.shape
    if matrix.group["adjust_lr_fn"] == "match_rms_adamw":
        return 0.2 * sqrt(max(rows, columns))
    return sqrt(max(1, rows / columns))
