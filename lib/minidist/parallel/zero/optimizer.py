"""`ZeroOptimizer`, to be used in place of an optimizer: state and work are 1/N on each rank."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, NoReturn
from weakref import proxy

import torch
import torch.distributed as dist
from torch import nn
from torch._compile import _disable_dynamo as eager  # which torch.compile runs as it is
from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.comm.agreement import agree_on, agreed
from minidist.comm.comm import Comm
from minidist.parallel.checks import NotCopied, choose_comm, not_dense
from minidist.parallel.holders import ShardedParams, hold, holder_of
from minidist.parallel.sharding.partition import MIB, Named, assign_alike
from minidist.parallel.zero import checks
from minidist.parallel.zero.bucket import ShardedBucket
from minidist.parallel.zero.checks import NAME
from minidist.parallel.zero.slices import Slices
from minidist.parallel.zero.state_dict import Group, State, gather_state, shard_state, shrunk


class ZeroOptimizer(NotCopied, Optimizer):
    """An optimizer of which each rank keeps the state, and does the work, for 1/N of the elements.

    After `step()` all ranks have the same parameters: those that `optimizer_class` makes with the
    mean of all ranks' gradients. The parameters become views of flat buffers, and must stay there.
    After Rajbhandari et al., *ZeRO* (2020), sections 5.1, 5.2 and 7.

    Args:
        params: as for any optimizer, alike on all ranks; no group can be added later. If another
            ZeroOptimizer has them, this one takes over.
        optimizer_class: one that treats each element alone, as SGD, Adam and AdamW do.
        process_group: the default group if None.
        parameters_as_bucket_view: torch's; here parameters always are views of buckets.
        overlap_with_ddp: torch's; refused, since stage 2 overlaps with backward.
        stage: 1: state is sharded. 2: gradients too: `backward()` averages each bucket as soon as
            it is full, keeps this rank's shard of it, and leaves every `parameter.grad` None. So
            all ranks run backward equally often; one that has no loss at all may leave out the only
            one before a step.
        gradients: "averaged": DDP has done it (stage 1 only, where it is the default). "local":
            they are this rank's, and averaged here; stage 1 does it in `step()`, which then leaves
            `parameter.grad` None too. Those of one step are not added to those of the one before;
            to discard them call this optimizer's zero_grad(), not the module's, and to clip them
            `minidist.clip_grad_norm_`, since torch's does not see the mean. Parameters that no rank
            has used are left alone. Rank 0's are given to all at the start.
        bucket_cap_mb: MiB that close a bucket, which is what is averaged and gathered at once.
        comm: what the ranks talk through; `Ours(process_group)` if None.
        defaults: of `optimizer_class`, such as `lr`.

    Raises:
        TypeError, ValueError: of this rank's arguments; it names the rank, and the parameter.
        MismatchError: the ranks' parameters or groups differ, or (where checks are on) arguments.
    """

    inner: Optimizer  # the `optimizer_class` over this rank's shards; `state` is its
    instead = "save its full_state_dict()"
    modules: Sequence[nn.Module] = ()  # see `Holder`
    _taken_over = _compared = False

    def __init__(
        self,
        params: Any,
        optimizer_class: type[Optimizer],
        process_group: ProcessGroup | None = None,
        parameters_as_bucket_view: bool = True,
        overlap_with_ddp: bool = False,
        *,
        stage: int = 1,
        gradients: str | None = None,
        bucket_cap_mb: float = 25,
        comm: Comm | None = None,
        **defaults: Any,
    ) -> None:
        self.comm = choose_comm(process_group, comm)
        self.stage, self.gradients = stage, gradients or ("averaged" if stage == 1 else "local")
        self._local = self.gradients == "local"
        self.comms: Sequence[Comm] = [self.comm]
        facts = {"stage": stage, "gradients": gradients, "bucket_cap_mb": bucket_cap_mb}
        with agreed(self.comm, NAME, facts):
            checks.check_arguments(optimizer_class, overlap_with_ddp, **facts)
            if not isinstance(params, Iterable):
                raise TypeError(f"params: expected parameters or groups of them, got {params!r}")
            self._make: partial[Any] = partial(optimizer_class, **defaults)
            super().__init__(params, {})
            checks.check_parameters(self.param_groups, self.comm.group, self._local)
            copy_hyper(shrunk(self._make, self.param_groups).param_groups, self.param_groups)
        checks.check_same_groups(optimizer_class.__name__, self.param_groups, self.comm)
        buckets = self._lay_out(bucket_cap_mb * MIB)
        optimizer = proxy(self)  # parameters may outlive it, but then without their hooks
        self._slices = Slices(
            self.comm,
            buckets,
            stage,
            not self._local,
            lambda: agree_on(self.comm, f"{NAME}, averaging", problem=self._problem()),
            lambda parameter: optimizer._gradient_arrives(parameter),
        )
        self.state, self.defaults = self.inner.state, self.inner.defaults

    def _lay_out(self, cap: float) -> list[ShardedBucket]:
        chosen: list[tuple[float, list[Named]]] = []  # with the depth in the model
        for named in checks.named_in(self.param_groups):
            for indexes in assign_alike([parameter for _, parameter in named], cap, cap):
                # Groups lie side by side, as those with and without weight decay do.
                chosen.append((min(indexes) / len(named), [named[index] for index in indexes]))
        chosen.sort(key=itemgetter(0), reverse=True)  # as backward fills them
        buckets = [ShardedBucket(each, self.comm.ranks, self.comm.rank) for _, each in chosen]
        shard_of: dict[Parameter, Parameter] = {}
        for bucket in buckets:
            if self._local and bucket.flat.numel:
                self.comm.broadcast(bucket.buffer)
            shard_of.update(zip(bucket.parameters, bucket.shards, strict=True))
        groups = [
            {**group, "params": [shard_of[parameter] for parameter in group["params"]]}
            for group in self.param_groups
        ]
        self.inner = self._make(groups)
        for parameter in shard_of:
            if isinstance(before := holder_of(parameter), ZeroOptimizer):
                before._slices.remove_hooks()
                before._taken_over = True
        hold(self, shard_of)
        return buckets

    @eager
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step; every rank must call it. A closure does what it does in torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self._local:  # before the ranks meet: others may have done it in their backward
            self.average()
        averaged = () if self._local or self._compared else self._slices.bucket_of
        facts = checks.facts_of_a_step(self.param_groups, averaged)
        self._compared = True
        agree_on(self.comm, f"{NAME}.step", facts, self._problem())
        copy_hyper(self.param_groups, self.inner.param_groups)
        self._slices.step(self.inner)
        copy_hyper(self.inner.param_groups, self.param_groups)
        return loss

    def average(self) -> None:
        """Average now what `step()` would, to see or change it before; every rank must call it."""
        self._slices.average_gradients()

    def sharded(self, gradients: bool) -> list[ShardedParams]:
        if not (gradients and self._local):
            return []
        self.average()
        return [
            ShardedParams(self.comm, each.parameters, each.shards, each.flat, each.views_of)
            for each in self.buckets
        ]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, a backward of stage 2 adds up whole gradients on this rank, and sends nothing."""
        before, self._slices.sync = self._slices.sync, False
        try:
            yield
        finally:
            self._slices.sync = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for bucket in self.buckets:
            bucket.zero_grad(set_to_none)

    @property
    def buckets(self) -> list[ShardedBucket]:
        return self._slices.buckets

    @property
    def _step_supports_amp_scaling(self) -> bool:
        if self._local:
            raise RuntimeError(
                f"rank {dist.get_rank()}: {NAME}: a GradScaler divides and checks what is in "
                "parameter.grad; with local gradients the mean ones are elsewhere, and each rank "
                "would decide alone whether to step. It works with stage=1 on DDP's gradients"
            )
        return False  # the scaler itself divides what is in `parameter.grad`

    @torch.no_grad()
    def full_state_dict(self, *, device: torch.device | str | None = None) -> State:
        """The whole state, as `state_dict()` of the unsharded optimizer; all ranks get it.

        Every rank must call it. It is put on `device`, such as "cpu", bucket by bucket; by default
        where the parameters are.
        """
        agree_on(self.comm, f"{NAME}.full_state_dict")
        copy_hyper(self.param_groups, self.inner.param_groups)
        state = gather_state(self.inner, self.buckets, self.comm, device)
        return {**self.inner.state_dict(), "state": state}

    @torch.no_grad()
    def load_full_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load this rank's part of a full state: `full_state_dict()`'s or the bare optimizer's.

        It must be alike on all ranks, but may have been saved with any number of them. If it is
        another model's or optimizer's, nothing of it is loaded.
        """
        mine: State = {}
        with agreed(self.comm, f"{NAME}.load_full_state_dict"):
            mine = shard_state(state_dict, self.param_groups, self._slices.bucket_of, self._make)
        self.inner.load_state_dict(mine)
        self.state = self.inner.state  # a new dict
        copy_hyper(self.inner.param_groups, self.param_groups)

    load_state_dict = load_full_state_dict

    def state_dict(self) -> NoReturn:
        """Refused: a rank has shards of the state, which mean nothing without the others'."""
        raise RuntimeError(
            f"rank {dist.get_rank()}: {NAME}.state_dict: this rank has shards of the state alone; "
            "call full_state_dict() on all ranks"
        )

    def add_param_group(self, param_group: Group) -> None:
        if hasattr(self, "inner"):
            raise NotImplementedError(f"{NAME}.add_param_group: build it anew, with all groups")
        super().add_param_group(param_group)

    def _gradient_arrives(self, parameter: Parameter) -> None:
        bucket = self._slices.bucket_of[parameter]
        if problem := not_dense(parameter, bucket.name_of[parameter]):
            raise TypeError(f"rank {dist.get_rank()}: {NAME}: {problem}")
        self._slices.gradient_ready(parameter)

    def _problem(self) -> Exception | None:
        """The reason why this rank cannot average or step now; None if it can."""
        if problem := self._slices.backward.problem:
            return RuntimeError(
                f"it is out of step with the other ranks: {problem}. Zero the gradients and build "
                "the optimizer anew, on all ranks"
            )
        if self._taken_over:
            return RuntimeError(
                f"another {NAME} was built on its parameters, and has taken over; use that one"
            )
        return checks.changed(self.param_groups, self.buckets)


def copy_hyper(source: Sequence[Group], target: Sequence[Group]) -> None:
    for one, other in zip(source, target, strict=True):
        other.update({**one, "params": other["params"]})
