"""Distributed data parallel: every rank has a replica, and backward averages their gradients.

The idea is in `reducer.py`. This is the module around a model: it decides which backward passes
synchronize, sees to buffers, and has everything checked.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.utils._pytree import tree_map_only

from minidist.comm.agreement import agree_on, agreed
from minidist.comm.comm import Comm, broadcast_coalesced
from minidist.comm.replicas import check_same_model
from minidist.parallel.autograd.backward import Backward
from minidist.parallel.checks import NotCopied, choose_comm
from minidist.parallel.ddp import checks
from minidist.parallel.ddp.bucket import Bucket, arrival_order
from minidist.parallel.ddp.comm_hooks import Hook, HookCall, name_of
from minidist.parallel.ddp.join import BACKWARD, FORWARD, OUT, Join, weight
from minidist.parallel.ddp.reducer import Reducer
from minidist.parallel.holders import PREFIX
from minidist.parallel.sharding.partition import MIB
from minidist.parallel.steps import have_stepped
from minidist.profiler.spans import COMPUTE
from minidist.profiler.timeline import mark


class DistributedDataParallel(NotCopied, nn.Module):
    """A module of which each rank has a replica, fed by its own share of the batch.

    As `torch.nn.parallel.DistributedDataParallel`: after `backward()` every rank has the mean of
    all ranks' gradients, the same bits. `steps` counts the backward passes that were averaged.

    Args:
        module: on one device. Its parameters must not be added, replaced, frozen, cast or moved
            afterwards.
        device_ids: a list of the GPU that the module is on, to which inputs are moved; or None.
        output_device: the same GPU, or None.
        broadcast_buffers: give rank 0's buffers to all at the start, and before each forward
            outside `no_sync`; under `no_grad` before the first.
        init_sync: compare the ranks' models, and give rank 0's parameters to all.
        find_unused_parameters: backward may leave out parameters, also different ones on
            different ranks, where they count as zeros; what no rank used stays as it was.
        static_graph: the same as `find_unused_parameters`.
        gradient_as_bucket_view: gradients are views of the buckets, so their memory is held once.
        bucket_cap_mb: MiB at which a bucket is full; 25 if None. It is sent as soon as it is full
            and all before it have been. After the first step buckets are built anew, in the order
            in which rank 0's gradients arrived.
        first_bucket_mb: MiB at which the first bucket is full.
        comm: what the ranks talk through; `Ours(process_group)` if None.
        forward_sync_buffers: takes the place of `broadcast_buffers`, but for the start.

    Raises:
        TypeError, ValueError: of this rank's arguments or module; it names the rank.
        MismatchError: the models differ, or (where checks are on) the arguments do.
    """

    instead = "take its .module, or state_dict()"

    def __init__(
        self,
        module: nn.Module,
        device_ids: list[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = True,
        init_sync: bool = True,
        process_group: ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        *,
        first_bucket_mb: float = 1,
        comm: Comm | None = None,
        forward_sync_buffers: bool | None = None,
        **torch_only: object,
    ) -> None:
        super().__init__()
        checks.check_torch_only(torch_only)
        self.comm = choose_comm(process_group, comm)
        cap = 25 if bucket_cap_mb is None else bucket_cap_mb
        at_start = broadcast_buffers is not False or forward_sync_buffers is not None
        self.broadcast_buffers = at_start if forward_sync_buffers is None else forward_sync_buffers
        self._find = find_unused_parameters or static_graph
        sizes = {"bucket_cap_mb": cap, "first_bucket_mb": first_bucket_mb}
        flags = {"broadcast_buffers": self.broadcast_buffers, "find_unused_parameters": self._find}
        given = {
            "broadcast_buffers": broadcast_buffers,
            "forward_sync_buffers": forward_sync_buffers,
            "init_sync": init_sync,
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
            "gradient_as_bucket_view": gradient_as_bucket_view,
        }
        ids = device_ids if isinstance(device_ids, list | tuple) else [device_ids]
        devices = [each for each in (*ids, output_device) if each is not None]
        checks.check_arguments(module, self.comm, sizes, flags, given, devices)
        if init_sync:
            check_same_model(module, self.comm)
        self.module, self.process_group = module, self.comm.group
        self.device, self.device_ids = next(module.parameters()).device, device_ids or None
        self.require_backward_grad_sync, self.steps = True, 0
        self.weight = 1.0  # weight of this rank's gradients in the next mean
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        self._names, self._kinds = {p: n for n, p in named}, checks.kinds(module)
        self._backward = Backward(self)
        self._reducer = Reducer(
            named,
            chain(module.parameters(), module.buffers() if at_start else ()) if init_sync else (),
            self.comm,
            (first_bucket_mb * MIB, cap * MIB),
            self._backward.hook,
            gradient_as_bucket_view,
        )
        self._used: set[Parameter] = set()  # those used on this rank since the last average
        have_stepped(self._names)  # before they were wrapped: that is over
        self._join: Join | None = None
        self._forwards, self._buffers_due = 0, False  # forwards outside `join`

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.device_ids:
            to = partial(torch.Tensor.to, device=self.device, non_blocking=True)
            inputs, kwargs = tree_map_only(torch.Tensor, to, (inputs, kwargs))
        if self._backward.under_way:  # a checkpoint around the wrapper runs it again
            return self.module(*inputs, **kwargs)
        self._backward.check()
        checks.check_unchanged(self.module, self._kinds, self._names)
        sync, training = self.require_backward_grad_sync, torch.is_grad_enabled()
        if sync and training and not self._join:  # there, each rank has its own number
            self._forwards += 1
        if sync and self.broadcast_buffers and (training or self._buffers_due):
            self._buffers_due = False
            if buffers := list(self.module.buffers()):
                self._meet(FORWARD)
                self._broadcast(buffers)
        with mark("forward", COMPUTE, self.device):
            output = self.module(*inputs, **kwargs)
        if training:
            self._buffers_due = True
            self._backward.expect(output, sync)
        return output

    def _broadcast(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give rank 0's to all ranks; in `join`, those of the last one that has batches."""
        broadcast_coalesced(tensors, self.comm, self._join.last if self._join else 0)

    def _meet(self, what: str, **facts: object) -> None:
        if self._join:
            self._join.announce(what)
        else:
            at = f"{what} after {self._forwards} forwards, {self.steps} backwards"
            agree_on(self.comm, f"{checks.NAME}, {at}", facts)

    # ---- backward ----
    #
    #                          Backward
    #    its hook, called    ↗          ↘    backward_begins, gradient_arrives, backward_ends
    #                 autograd          this wrapper, which checks
    #    the hook, set on    ↖          ↙    prepare, gradient_ready, launch_rest, finish
    #    each parameter        Reducer

    @torch.no_grad()
    def backward_begins(self, sync: bool) -> None:
        if sync:
            self._meet(BACKWARD, **{checks.STEPPED: have_stepped(self._names)})
            self._prepare(self.weight)

    def _prepare(self, weight: float) -> None:
        if self.steps == 1:
            named = [(name, parameter) for parameter, name in self._names.items()]
            order = arrival_order(self.comm, named, self._backward.arrivals)
            self._reducer.fill_buckets(order)
        self._reducer.prepare(weight)

    @torch.no_grad()
    def gradient_arrives(self, parameter: Parameter, sync: bool) -> None:
        bucket = self._reducer.bucket_of[parameter]
        launched = sync and bucket.index() < len(self._reducer.in_flight)
        checks.check_gradient(parameter, self._names[parameter], launched)
        if parameter.grad is not None or not self._find:  # None: a function did not use it
            self._used.add(parameter)
        if sync:
            self._reducer.gradient_ready(parameter)
        elif self._reducer.as_view and parameter.grad is not None:
            view = bucket.views[parameter]  # gradients accumulate there
            parameter.grad = view if parameter.grad is view else view.copy_(parameter.grad)

    @torch.no_grad()
    def backward_ends(self, sync: bool) -> None:
        if sync:
            problem = None if self._find else checks.unused(self._used, self._names)
            used = self._launch_rest()  # also where there is a problem, for which others would wait
            if problem or not self._join:
                agree_on(self.comm, f"{checks.NAME}, backward", problem=problem)
            self._reducer.finish(used)
            self.steps, self.weight = self.steps + 1, 1.0

    def _launch_rest(self) -> set[Parameter]:
        self._reducer.launch_rest()
        used, self._used = self._used, set()
        return self._reducer.used_by_some_rank(used) if self._find else used  # all of them

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes of the forwards within it accumulate on this rank, and send nothing."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def weigh(self, samples: float) -> None:
        """Let this rank's gradients count for `samples` in the next backward that is averaged.

        If each rank's loss is a mean, the gradients become those of the mean over all samples.
        Every rank must call it, before each such backward.
        """
        checks.check_samples(samples, self.comm, self._join)
        self.weight = weight(self.comm, samples)

    @contextmanager
    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Iterator[None]:
        """Let ranks have different numbers of batches in the training loop within it.

        Gradients are divided by the number of all ranks, so each batch counts the same throughout.
        At the end all ranks have the model of the last one to run out, the highest if they are
        several; what its optimizer holds is not copied. See [Note: shadow passes] in `join.py`.
        """
        checks.check_torch_only(
            {
                "divide_by_initial_world_size=False": not divide_by_initial_world_size,
                "enable=False": not enable,
                "throw_on_early_termination": throw_on_early_termination,
            }
        )
        self._join = Join(self.comm)
        try:
            yield
            while (what := self._join.announce(OUT)) != OUT:
                if what == FORWARD:
                    self._broadcast(self.module.buffers())
                    continue
                with torch.no_grad():  # take part in the others' backward with gradients of zeros
                    self._prepare(0.0)
                    self._launch_rest()
                    self._reducer.finish(used=())
                    self.steps += 1
            buffers = self.module.buffers() if self.broadcast_buffers else ()
            self._broadcast(chain(self.module.parameters(), buffers))
        finally:
            self._join = None
            have_stepped(self._names)  # each rank as often as it had batches

    def register_comm_hook(self, state: object, hook: Hook) -> None:
        """Send buckets by `hook(state, bucket)` instead of an all-reduce: see `comm_hooks`."""
        with agreed(self.comm, "register_comm_hook", {"hook": name_of(hook)}):
            if not callable(hook):
                raise TypeError(f"hook: expected a function of (state, bucket), got {hook!r}")
            if self._reducer.comm_hook:
                raise ValueError("hook: there is one already; wrap the module anew for another")
        self._reducer.comm_hook = partial(HookCall, state, hook)

    @property
    def buckets(self) -> list[Bucket]:
        return self._reducer.buckets

    @property
    def arrivals(self) -> list[str]:
        """The names of parameters in the order of their gradients in the last backward."""
        return [self._names[parameter] for parameter in self._backward.arrivals]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the inner module's; all names may begin with "module.", as torch's do."""
        if not state_dict.keys() & self.module.state_dict().keys():
            state_dict = {name.removeprefix(PREFIX): each for name, each in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **kwargs)
