"""Mixed precision: in which dtypes a unit's parameters are used, and its gradients averaged."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Dtypes(NamedTuple):
    """The fields of PyTorch's `torch.distributed.fsdp.MixedPrecisionPolicy`, and their defaults.

    That class is what users pass. We read its fields, for importing it takes a second or more.

    Attributes:
        param_dtype: in which parameters are gathered and used; None: as they are.
        reduce_dtype: in which gradients are averaged; None: as the parameters are used.
        output_dtype: to which the floating-point outputs of forward are cast; None: as they are.
        cast_forward_inputs: cast the floating-point inputs of forward to `param_dtype`.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True


def dtypes_of(mp_policy: object) -> Dtypes:
    """What a user has passed; raises TypeError, without the rank, if it is no policy."""
    if mp_policy is None:
        return Dtypes()
    if not all(hasattr(mp_policy, field) for field in Dtypes._fields):
        raise TypeError(
            "mp_policy: expected a torch.distributed.fsdp.MixedPrecisionPolicy, got "
            f"{type(mp_policy).__name__}"
        )
    found = Dtypes(*(getattr(mp_policy, field) for field in Dtypes._fields))
    for field, dtype in zip(Dtypes._fields[:3], found[:3], strict=True):
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"mp_policy.{field}: expected a floating-point dtype, got {dtype!r}")
    return found
