"""Checks of a ZeroOptimizer: what it refuses, and what must be alike on all ranks."""

from collections.abc import Iterable, Sequence
from itertools import chain

from torch.distributed import ProcessGroup
from torch.nn import Parameter
from torch.optim import Optimizer

from minidist.collectives.checks.tensors import check_apart, same_place
from minidist.comm.agreement import checks_are_on
from minidist.comm.comm import Comm
from minidist.comm.replicas import Entry, check_same, digest, metadata
from minidist.parallel.autograd.backward import watched
from minidist.parallel.checks import check_tensors, is_elementwise, is_number, not_dense
from minidist.parallel.sharding.partition import Named
from minidist.parallel.zero.bucket import ShardedBucket
from minidist.parallel.zero.state_dict import Group

NAME = "ZeroOptimizer"


def named_in(groups: Sequence[Group]) -> list[list[Named]]:
    named = []
    for number, group in enumerate(groups):
        places = [f"parameter {place} of group {number}" for place in range(len(group["params"]))]
        named.append(list(zip(group.get("param_names") or places, group["params"], strict=True)))
    return named


def check_arguments(
    kind: object, overlap: object, stage: object, gradients: object, bucket_cap_mb: object
) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Optimizer)):
        raise TypeError(
            "optimizer_class: expected a class such as torch.optim.AdamW, not an instance of it, "
            f"got {kind!r}"
        )
    if not is_elementwise(kind):
        raise ValueError(
            "optimizer_class: expected one that treats each element alone, as SGD and Adam do, "
            f"got {kind.__name__}"
        )
    if stage not in (1, 2):
        raise ValueError(f"stage: expected 1 or 2 (minidist.fully_shard is 3), got {stage!r}")
    allowed = (None, "averaged", "local") if stage == 1 else (None, "local")
    if gradients not in allowed:
        raise ValueError(
            f"gradients: expected one of {allowed} with stage={stage}, got {gradients!r}"
        )
    if overlap:
        raise ValueError(
            "overlap_with_ddp: expected False, got True; stage=2 overlaps with backward"
        )
    if not (is_number(bucket_cap_mb) and bucket_cap_mb > 0):
        raise ValueError(f"bucket_cap_mb: expected a number of MiB above 0, got {bucket_cap_mb!r}")


def check_parameters(groups: Sequence[Group], group: ProcessGroup | None, local: bool) -> None:
    named = list(chain.from_iterable(named_in(groups)))
    check_tensors("params", dict(named), group)
    check_apart(dict(named), {})
    for name, parameter in named:
        if local and watched(parameter):
            raise ValueError(
                f"params: the gradient of '{name}' is averaged by DistributedDataParallel already; "
                "pass the parameters of a bare module, or gradients='averaged'"
            )


def check_same_groups(kind: str, groups: Sequence[Group], comm: Comm) -> None:
    entries = []
    for number, named in enumerate(named_in(groups)):
        entries.append(Entry("", f"group {number} of {kind}", f" with {described(groups[number])}"))
        for name, parameter in named:
            entries.append(Entry(name, f"{name} in group {number}", metadata(parameter)))
    check_same(entries, comm, "optimizers")


def described(group: Group) -> str:
    hyper = group.keys() - {"params", "param_names"}
    return ", ".join(f"{key}={group[key]}" for key in sorted(hyper))


def facts_of_a_step(groups: Sequence[Group], averaged: Iterable[Parameter]) -> dict[str, object]:
    if not checks_are_on():
        return {}
    facts: dict[str, object] = {
        f"the hyper-parameters of group {number}": described(group)
        for number, group in enumerate(groups)
    }
    if parameters := list(averaged):
        # Without DDP the replicas would stay alike, trained on gradients that nobody averaged.
        what = "the gradients, which DDP makes alike (without it pass gradients='local')"
        facts[what] = digest(each.grad for each in parameters if each.grad is not None)
    return facts


def changed(groups: Sequence[Group], buckets: Sequence[ShardedBucket]) -> Exception | None:
    given = {id(parameter) for group in groups for parameter in group["params"]}
    if given != {id(parameter) for bucket in buckets for parameter in bucket.parameters}:
        return RuntimeError(
            f"param_groups have other parameters than the {NAME} was built on; build it anew, on "
            "all ranks"
        )
    for bucket in buckets:
        for parameter, view in bucket.views.items():
            if not same_place(parameter, view):
                return RuntimeError(
                    f"{bucket.name_of[parameter]} was given other memory after the {NAME} was "
                    "built, as .to() and `.data =` do; build it anew, on all ranks"
                )
            if problem := not_dense(parameter, bucket.name_of[parameter]):
                return problem
    return None
