"""The nucleus of DDP: gradients are averaged bucket by bucket, while backward computes others.

After Li et al., *PyTorch Distributed* (VLDB 2020), 3.2. What it does not handle is in `ddp.py`.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable
from itertools import compress
from weakref import finalize

import torch
from torch.nn import Parameter

from minidist.comm.comm import Comm, Handle, Pending, broadcast_coalesced, noted, on_some_rank
from minidist.parallel.ddp.bucket import Bucket, build_buckets
from minidist.parallel.sharding.partition import Named


class Reducer:
    """Averages the gradients of replicas.

    Args:
        named: the parameters to train, by name; alike on all ranks.
        initial: parameters and buffers that all ranks take from rank 0 before training.
        caps: bytes that close the first bucket, and each later one.
        on_gradient: autograd's hook for each parameter; it leads to `gradient_ready`.
        as_view: `parameter.grad` is a view of the bucket.
    """

    def __init__(
        self,
        named: list[Named],
        initial: Iterable[torch.Tensor],
        comm: Comm,
        caps: tuple[float, float],
        on_gradient: Callable[[Parameter], None],
        as_view: bool,
    ) -> None:
        self.comm, self.caps, self.as_view = comm, caps, as_view
        self.comm_hook: Callable[[Bucket], Handle] | None = None
        # 1. All replicas start alike.
        broadcast_coalesced(initial, comm)
        self.fill_buckets(named)
        # 2. Autograd calls the hook, with the parameter, once it has accumulated its gradient.
        for _, parameter in named:
            handle = parameter.register_post_accumulate_grad_hook(on_gradient)  # type: ignore[no-untyped-call]
            finalize(self, handle.remove)

    def fill_buckets(self, order: list[Named]) -> None:
        """Build buckets for parameters in the order of forward; the old ones are freed first."""
        self.buckets: list[Bucket] = []
        self.bucket_of: dict[Parameter, Bucket] = {}
        self.in_flight: list[tuple[Bucket, Handle]] = []
        self.buckets = build_buckets(order, *self.caps)
        self.bucket_of = {p: bucket for bucket in self.buckets for p in bucket.views}

    def prepare(self, weight: float = 1.0) -> None:
        """3. A backward begins. All ranks launch their buckets in this order."""
        self.pending = deque(self.buckets)
        self.in_flight.clear()
        self.scale = weight if self.comm_hook else weight / self.comm.ranks  # hooks divide
        for bucket in self.buckets:
            bucket.ready.clear()

    def gradient_ready(self, parameter: Parameter) -> None:
        """4. Autograd has made a gradient: launch what is full, and whose turn it is."""
        self.bucket_of[parameter].ready.add(parameter)
        while self.pending and self.pending[0].full:
            self.launch()

    def launch(self) -> None:
        """5. Copy the next bucket's gradients, scaled, into its flat buffer, and all-reduce it."""
        bucket = self.pending.popleft()
        for parameter, view in bucket.views.items():
            gradient, ready = parameter.grad, parameter in bucket.ready
            if gradient is view and not ready:  # it is kept, in case no rank has used it
                parameter.grad = view.clone()
            if gradient is None or self.scale == 0:  # a rank that counts for nothing, NaN or not
                view.zero_()
            elif gradient is not view or self.scale != 1:
                torch.mul(gradient, self.scale, out=view)
            if self.as_view and ready and gradient is not None:
                parameter.grad = view  # frees the gradient's own memory
        if self.comm_hook:
            work: Pending = self.comm_hook(bucket)  # what the user sends instead
        else:
            work = self.comm.all_reduce(bucket.flat, async_op=True)
        self.in_flight.append((bucket, noted(f"bucket {bucket.index()}", work)))

    def launch_rest(self) -> None:
        """6. Backward is over: launch what is not full, or has waited for what is not."""
        while self.pending:
            self.launch()

    def used_by_some_rank(self, used: Container[Parameter]) -> set[Parameter]:
        """7. Learn which parameters had a gradient on some rank, if they may differ."""
        parameters = list(self.bucket_of)  # the same order on all ranks
        here = [parameter in used for parameter in parameters]
        return set(compress(parameters, on_some_rank(here, parameters[0].device, self.comm)))

    def finish(self, used: Container[Parameter]) -> None:
        """8. Wait for each bucket, and write back the averages of what some rank has used."""
        for bucket, work in self.in_flight:
            work.wait()
            for parameter, view in bucket.views.items():
                if parameter not in used:
                    continue  # what no rank has used keeps its gradient
                if self.as_view:
                    parameter.grad = view
                elif parameter.grad is None:
                    parameter.grad = view.clone()
                else:
                    parameter.grad.copy_(view)
        self.in_flight.clear()
