"""What DDP refuses: arguments, modules, and gradients that cannot be averaged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from minidist.comm.agreement import agreed
from minidist.comm.comm import Comm
from minidist.parallel.checks import check_module, check_tensors, is_number

NAME = "DistributedDataParallel"
SYNC = ("naive", "flat", "bucketed", "overlapped")
Kinds = dict[Parameter, tuple[torch.dtype, torch.device]]

NOT_HERE = {  # torch's arguments: default, and what to do instead
    "delay_all_reduce_named_params": (None, "freeze them, and all-reduce their gradients yourself"),
    "param_to_hook_all_reduce": (None, "use register_post_accumulate_grad_hook yourself"),
    "mixed_precision": (None, "use torch.autocast, or minidist.fully_shard with mp_policy"),
    "device_mesh": (None, "pass process_group=device_mesh.get_group()"),
    "skip_all_reduce_unused_params": (False, "freeze what no rank uses: requires_grad_(False)"),
    "bucket_cap_mb_list": (None, "pass first_bucket_mb and bucket_cap_mb"),
    "batched_grad_copy": (False, "pass gradient_as_bucket_view=True to save the copies"),
}
NOT_IN_JOIN = {
    "divide_by_initial_world_size": (True, "weigh the batches with model.weigh(samples)"),
    "enable": (True, "leave out the with statement"),
    "throw_on_early_termination": (False, "all-reduce a flag before each batch, and stop"),
}


def check_of_torch(call: str, known: Mapping[str, tuple[Any, str]], given: dict[str, Any]) -> None:
    """Raise TypeError for an argument of torch's that we do not have, naming our way."""
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"rank {dist.get_rank()}: {call}: unexpected argument {name}")
        default, instead = known[name]
        if value != default:
            raise TypeError(
                f"rank {dist.get_rank()}: {call}: {name}: expected {default!r}, got {value!r}; "
                f"{instead}"
            )


def check_arguments(
    module: nn.Module,
    comm: Comm,
    sync: str,
    sizes: Mapping[str, object],
    flags: Mapping[str, bool],
    devices: Sequence[Any],
) -> None:
    """Raise if this rank's arguments are wrong, another's are, or they differ between ranks.

    Args:
        module: what is to be wrapped.
        comm: between the ranks.
        sync: one of `SYNC`.
        sizes: argument → MiB.
        flags: argument → value, alike on all ranks.
        devices: what the user says the module is on.
    """
    with agreed(comm, NAME, {"sync": sync, **sizes, **flags}):
        if sync not in SYNC:
            raise ValueError(f"sync must be one of {', '.join(SYNC)}, got {sync!r}")
        for name, size in sizes.items():
            if not (is_number(size) and size > 0):
                raise ValueError(f"{name}: expected a number of MiB above 0, got {size!r}")
        check_module(module)
        named = dict(module.named_parameters())
        if not named:
            raise ValueError("module: expected parameters to train, it has none; call it as it is")
        check_tensors("module", named | dict(module.named_buffers()), comm.group)
        if not any(parameter.requires_grad for parameter in named.values()):
            raise ValueError(
                f"module: expected a parameter with requires_grad=True, all {len(named)} are frozen"
            )
        own = next(module.parameters()).device
        for each in devices:
            device = torch.device(own.type, each) if isinstance(each, int) else torch.device(each)
            if own.type == "cpu" or device != own:
                expected = "None for a module on the CPU" if own.type == "cpu" else own
                raise ValueError(f"device_ids, output_device: expected {expected}, got {each!r}")


def check_hook(hook: object, name: str, before: object, comm: Comm) -> None:
    """Raise if a hook cannot be registered, or if the ranks register different ones."""
    with agreed(comm, "register_comm_hook", {"hook": name}):
        if not callable(hook):
            raise TypeError(f"hook: expected a function of state and bucket, got {hook!r}")
        if before is not None:
            raise ValueError("hook: there is one already; wrap the module anew for another")


def check_gradient(parameter: Parameter, name: str, launched: bool) -> None:
    """Raise if a gradient cannot be averaged: a sparse one, or one whose bucket was launched."""
    where = f"rank {dist.get_rank()}: {NAME}"
    if parameter.grad is not None and parameter.grad.layout != torch.strided:
        raise TypeError(
            f"{where}: expected a dense gradient of {name}, got layout {parameter.grad.layout}; "
            "build its module with sparse=False"
        )
    if launched:
        raise RuntimeError(
            f"{where}: {name} got a second gradient in one backward, after its bucket had left. A "
            "checkpointed part that is used twice does that: pass use_reentrant=False to "
            "torch.utils.checkpoint, or wrap with sync='bucketed'"
        )


def kinds(module: nn.Module) -> Kinds:
    """What a module trains: parameter → dtype and device."""
    # At every forward, so not by module.parameters(), which takes three times as long.
    every = (p for part in module.modules() for p in part._parameters.values())
    return {p: (p.dtype, p.device) for p in every if p is not None and p.requires_grad}


def check_unchanged(module: nn.Module, wrapped: Kinds, names: Mapping[Parameter, str]) -> None:
    """Raise RuntimeError unless the module trains what it did when it was wrapped."""
    now = kinds(module)
    if now == wrapped:
        return
    all_names = {**names, **{p: name for name, p in module.named_parameters()}}
    changed = [name for p, name in all_names.items() if now.get(p) != wrapped.get(p)]
    raise RuntimeError(
        f"rank {dist.get_rank()}: module: {', '.join(changed[:10])} changed after wrapping (added, "
        "removed, replaced, frozen, cast or moved); wrap the module anew, on all ranks"
    )
