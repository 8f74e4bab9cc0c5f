"""What a ZeroOptimizer refuses, and what must be alike on all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from minidist.collectives.checks.tensors import check_apart, same_place
from minidist.comm.comm import Comm
from minidist.comm.replicas import Entry, looks, same
from minidist.parallel.autograd.backward import watched
from minidist.parallel.checks import check_tensors, is_number
from minidist.parallel.sharding.partition import Named
from minidist.parallel.zero.bucket import ShardedBucket
from minidist.parallel.zero.param_groups import Group, hyper, named_in

NAME = "ZeroOptimizer"
# What these do to an element depends on others of its tensor, of which a rank has a part.
NOT_ELEMENTWISE = {"adafactor", "lamb", "lars", "lbfgs", "muon", "shampoo", "soap", "sparseadam"}


def check_arguments(
    optimizer_class: object,
    stage: object,
    gradients: object,
    bucket_cap_mb: object,
    overlap_with_ddp: object,
) -> None:
    """Raise TypeError or ValueError if one of them is wrong."""
    if not (isinstance(optimizer_class, type) and issubclass(optimizer_class, Optimizer)):
        raise TypeError(
            "optimizer_class: expected a class such as torch.optim.AdamW, not an instance of it, "
            f"got {optimizer_class!r}"
        )
    if NOT_ELEMENTWISE.intersection(each.__name__.lower() for each in optimizer_class.__mro__):
        raise ValueError(
            "optimizer_class: expected one that treats each element alone, as SGD and Adam do, "
            f"got {optimizer_class.__name__}"
        )
    if isinstance(stage, bool) or stage not in (1, 2):
        raise ValueError(f"stage: expected 1 or 2 (minidist.fully_shard is 3), got {stage!r}")
    allowed = (None, "averaged", "local") if stage == 1 else (None, "local")
    if gradients not in allowed:
        raise ValueError(
            f"gradients: expected one of {allowed} with stage={stage}, got {gradients!r}"
        )
    if overlap_with_ddp:
        raise ValueError(
            "overlap_with_ddp: expected False, got True; stage=2 overlaps with backward"
        )
    if not (is_number(bucket_cap_mb) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb: expected a number of MiB above 0, got {bucket_cap_mb!r}")


def check_parameters(named: Sequence[Named], group: ProcessGroup | None, local: bool) -> None:
    """Raise TypeError or ValueError if these parameters cannot be put into buckets."""
    check_tensors("params", dict(named), group)
    check_apart(dict(named), {})
    for name, parameter in named:
        if local and watched(parameter):
            raise ValueError(
                f"params: the gradient of '{name}' is averaged by DistributedDataParallel already; "
                "pass the parameters of a bare module, or gradients='averaged'"
            )


def check_same_groups(kind: str, groups: Sequence[Group], first: int, comm: Comm) -> None:
    """Raise MismatchError on every rank unless all have the same groups, from number `first` on."""
    entries = []
    for number, named in enumerate(named_in(groups, first), start=first):
        entries.append(Entry("", f"group {number} of {kind}", f" with {described(groups[number])}"))
        for name, parameter in named:
            entries.append(Entry(name, f"{name} in group {number}", looks(parameter)))
    same(entries, comm, "optimizers")


def described(group: Group) -> str:
    """A group's hyper-parameters, such as "betas=(0.9, 0.999), lr=0.1"."""
    return ", ".join(f"{key}={value}" for key, value in sorted(hyper(group).items()))


def moved(buckets: Iterable[ShardedBucket]) -> RuntimeError | None:
    """What to raise if a parameter does not lie in its bucket's memory any more."""
    for bucket in buckets:
        for parameter, view in bucket.views.items():
            if not same_place(parameter, view):
                return RuntimeError(
                    f"{bucket.name_of[parameter]} was given other memory after the {NAME} was "
                    "built, as .to() and `.data =` do; build it anew, on all ranks"
                )
    return None
