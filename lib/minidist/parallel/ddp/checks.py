"""Checks of DDP: of arguments, modules, and gradients that cannot be averaged."""

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import Parameter

from minidist.comm.agreement import agreed
from minidist.comm.comm import Comm
from minidist.errors import check_flags
from minidist.parallel.checks import check_module, check_tensors, is_number, not_dense

NAME = "DistributedDataParallel"
STEPPED = "whether an optimizer has stepped since the last backward"
Kinds = dict[Parameter, tuple[torch.dtype, torch.device]]

INSTEAD = {  # arguments that torch alone has → what to do instead
    "batched_grad_copy": "pass gradient_as_bucket_view=True to save the copies back from buckets",
    "bucket_cap_mb_list": "pass first_bucket_mb and bucket_cap_mb",
    "delay_all_reduce_named_params": "freeze them, and all-reduce their gradients yourself",
    "device_mesh": "pass process_group=device_mesh.get_group()",
    "mixed_precision": "use torch.autocast, or minidist.fully_shard with mp_policy",
    "param_to_hook_all_reduce": "use register_post_accumulate_grad_hook yourself",
    "skip_all_reduce_unused_params": "freeze what no rank uses: requires_grad_(False)",
    "divide_by_initial_world_size=False": "weigh the batches with model.weigh(samples)",
    "enable=False": "leave out the with statement",
    "throw_on_early_termination": "all-reduce a flag before each batch, and stop",
}


def check_torch_only(given: Mapping[str, object]) -> None:
    for name, value in given.items():
        if value or name not in INSTEAD:
            instead = INSTEAD.get(name, "there is no such argument")
            raise TypeError(f"rank {dist.get_rank()}: {NAME}: {name}: {instead}")


def check_arguments(
    module: nn.Module,
    comm: Comm,
    sizes: Mapping[str, object],
    flags: Mapping[str, bool],
    given: Mapping[str, object],
    devices: Sequence[Any],
) -> None:
    with agreed(comm, NAME, {**sizes, **flags}):
        check_flags(given)
        for name, size in sizes.items():
            if not (is_number(size) and size > 0):
                raise ValueError(f"{name}: expected a number of MiB above 0, got {size!r}")
        check_module(module)
        named = dict(module.named_parameters())
        check_tensors("module", named | dict(module.named_buffers()), comm.group)
        if not any(parameter.requires_grad for parameter in named.values()):
            raise ValueError("module: expected a parameter with requires_grad=True, got none")
        own = next(module.parameters()).device
        for each in devices:
            name = f"{own.type}:{each}" if isinstance(each, int) else str(each)
            if own.type == "cpu" or name != str(own):
                expected = "None for a module on the CPU" if own.type == "cpu" else own
                raise ValueError(f"device_ids, output_device: expected {expected}, got {each!r}")


def check_samples(samples: object, comm: Comm, join: object) -> None:
    if join:
        raise RuntimeError(f"rank {dist.get_rank()}: weigh: in join all batches count alike")
    with agreed(comm, "weigh"):
        if not is_number(samples) or not 0 <= samples < math.inf:
            raise ValueError(f"samples: expected a number from 0 on, got {samples!r}")


def check_gradient(parameter: Parameter, name: str, launched: bool) -> None:
    where = f"rank {dist.get_rank()}: {NAME}"
    if problem := not_dense(parameter, name):
        raise TypeError(f"{where}: {problem}")
    if launched:
        raise RuntimeError(
            f"{where}: {name} got a second gradient in one backward, after its bucket had left. A "
            "checkpointed part that is used twice does that: pass use_reentrant=False to "
            "torch.utils.checkpoint"
        )


def unused(used: Container[Parameter], names: Mapping[Parameter, str]) -> RuntimeError | None:
    """The reason why gradients cannot be averaged; None if backward has reached all parameters."""
    left = [name for parameter, name in names.items() if parameter not in used]
    if not left:
        return None
    return RuntimeError(
        f"expected backward to give every parameter a gradient, got none for {len(left)}: "
        f"{', '.join(left[:10])}. Pass find_unused_parameters=True if the loss may leave "
        "parameters out, or freeze them before wrapping: requires_grad_(False)"
    )


def kinds(module: nn.Module) -> Kinds:
    # At every forward, so not by module.parameters(), which takes three times as long.
    every = (p for part in module.modules() for p in part._parameters.values())
    return {p: (p.dtype, p.device) for p in every if p is not None and p.requires_grad}


def check_unchanged(module: nn.Module, wrapped: Kinds, names: Mapping[Parameter, str]) -> None:
    if (now := kinds(module)) != wrapped:
        names = {**names, **{p: name for name, p in module.named_parameters()}}
        changed = [name for p, name in names.items() if now.get(p) != wrapped.get(p)]
        raise RuntimeError(
            f"rank {dist.get_rank()}: module: {', '.join(changed[:10])} changed after wrapping "
            "(added, removed, replaced, frozen, cast or moved); wrap the module anew, on all ranks"
        )
