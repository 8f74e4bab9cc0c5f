"""What a collective must give, computed by one process from the data of all ranks."""

from collections.abc import Sequence

import torch
from torch.distributed import ReduceOp

OPS = {name: getattr(ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX")}
DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]
NO_MEANING = {
    (torch.bool, "AVG"),
    (torch.uint8, "AVG"),  # 8 ranks' sum may not fit
    (torch.complex64, "MIN"),
    (torch.complex64, "MAX"),
}


def data(
    rank: int, shape: int | Sequence[int], dtype: torch.dtype = torch.float32, op: str = "SUM"
) -> torch.Tensor:
    """Whole numbers of this rank, so small that up to 8 ranks' are reduced without rounding."""
    size = (shape,) if isinstance(shape, int) else tuple(shape)
    source = torch.Generator().manual_seed(77 + rank)

    def numbers() -> torch.Tensor:
        if op == "PRODUCT":
            most = torch.randint(1, 3, size, generator=source)
        else:
            most = torch.randint(0, 31, size, generator=source)
        sign = 1 if dtype == torch.uint8 else torch.randint(0, 2, size, generator=source) * 2 - 1
        return most * sign

    if dtype == torch.bool:
        return torch.rand(size, generator=source) < (0.8 if op in ("PRODUCT", "MIN") else 0.2)
    return (
        torch.complex(numbers().float(), numbers().float())
        if dtype.is_complex
        else (numbers().to(dtype))
    )


def reduced(parts: Sequence[torch.Tensor], op: str = "SUM") -> torch.Tensor:
    """All ranks' tensors reduced."""
    whole = torch.stack(list(parts))
    if op == "PRODUCT":
        return whole.prod(0, dtype=whole.dtype)
    if op in ("MIN", "MAX"):
        return whole.amin(0) if op == "MIN" else whole.amax(0)
    total = whole.sum(0, dtype=whole.dtype)
    if op == "SUM":
        return total
    exact = whole.is_floating_point() or whole.is_complex()
    return torch.div(total, len(parts), rounding_mode=None if exact else "trunc")


def all_reduced(
    ranks: int, shape: int | Sequence[int], dtype: torch.dtype = torch.float32, op: str = "SUM"
) -> torch.Tensor:
    """What every rank must hold after an all-reduce of `data`."""
    return reduced([data(rank, shape, dtype, op) for rank in range(ranks)], op)


def same(mine: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether shape, dtype and every value are equal; a NaN equals a NaN."""
    if mine.shape != want.shape or mine.dtype != want.dtype:
        return False
    if mine.dtype == torch.bool:  # by bytes: a broken bool may hold 2 and still print as True
        return bytes_of(mine) == bytes_of(want)
    return torch.equal(mine, want) or bool(torch.isclose(mine, want, 0, 0, equal_nan=True).all())


def bytes_of(tensor: torch.Tensor) -> bytes:
    """Every bit of the tensor's elements, to compare between ranks and runs."""
    plain = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return plain.view(torch.uint8).numpy().tobytes()
