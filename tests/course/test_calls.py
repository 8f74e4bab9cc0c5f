"""What the lab says of each call of a library."""

from types import SimpleNamespace
from typing import Any

import torch

import minidist
from course.chapters.collectives.calls import tried


def numbers(value: int) -> torch.Tensor:
    return torch.arange(6.0) + 100 * value


def library_with(**calls: Any) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(minidist), **calls})


def forgets(tensor: torch.Tensor, *_: object) -> None:
    tensor[-1] = 0


def refuses(*_: object) -> None:
    raise ValueError("contiguous tensors only")


def test_each_call_is_right_or_wrong_or_refused() -> None:
    library = library_with(all_reduce=forgets, gather=refuses)
    said = tried(library, numbers)
    assert said.pop("all_reduce") == "wrong, and no error"
    assert said.pop("gather") == "refused: ValueError"
    assert set(said.values()) == {"right"}
    assert len(said) == 6


def breaks(*_: object) -> None:
    raise KeyError("ranks")


def test_a_call_that_breaks_the_ranks_spoils_no_other() -> None:
    said = tried(library_with(reduce=breaks), numbers)
    assert said.pop("reduce").startswith("failed: ")
    assert set(said.values()) == {"right"}
