"""`Ours`: a wrapper's calls, made by minidist's own collectives."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp

from minidist.collectives import lists
from minidist.collectives import tensor as calls
from minidist.collectives.runtime.group import check_group
from minidist.collectives.tuner import CHOSEN
from minidist.comm.comm import Op, Pending
from minidist.schedule.algorithms import ALL_REDUCE


class Ours:
    """minidist's own collectives.

    Args:
        group: the default group if None.
        algorithm: of `all_reduce`. Its two halves are also chosen by "auto" and also go through
            "shared_memory"; with any other they go by the ring. Broadcasts go by the tree.
        check: whether the ranks agree before each call, as in `minidist.all_reduce`; before an
            all-to-all the environment decides.

    Raises TypeError or ValueError if this rank is not in the group, or for an unknown algorithm.
    """

    def __init__(
        self,
        group: ProcessGroup | None = None,
        *,
        algorithm: str = "auto",
        check: bool | None = None,
    ) -> None:
        check_group(group)
        self.group, self._algorithm, self._check = group, algorithm, check
        self.rank, self.ranks = dist.get_rank(group), dist.get_world_size(group)
        known = [*ALL_REDUCE, *CHOSEN]
        if algorithm not in known:
            where = f"rank {dist.get_rank()}: algorithm"
            raise ValueError(f"{where} must be one of {', '.join(known)}, got {algorithm!r}")
        self._half = algorithm if algorithm in ("auto", "shared_memory") else "ring"

    def broadcast(self, tensor: Tensor, group_src: int = 0, async_op: bool = False) -> Pending:
        return calls.broadcast(tensor, None, self.group, async_op, group_src, check=self._check)

    def all_reduce(self, tensor: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False) -> Pending:
        return calls.all_reduce(
            tensor, op, self.group, async_op, algorithm=self._algorithm, check=self._check
        )

    def reduce_scatter(
        self, output: Tensor, input: Tensor, op: Op = ReduceOp.SUM, async_op: bool = False
    ) -> Pending:
        return calls.reduce_scatter_tensor(
            output, input, op, self.group, async_op, algorithm=self._half, check=self._check
        )

    def all_gather(self, output: Tensor, input: Tensor, async_op: bool = False) -> Pending:
        return calls.all_gather_into_tensor(
            output, input, self.group, async_op, algorithm=self._half, check=self._check
        )

    def all_to_all(
        self,
        output: Tensor,
        input: Tensor,
        output_sizes: Sequence[int],
        input_sizes: Sequence[int],
        async_op: bool = False,
    ) -> Pending:
        return lists.all_to_all_single(
            output, input, output_sizes, input_sizes, self.group, async_op
        )
