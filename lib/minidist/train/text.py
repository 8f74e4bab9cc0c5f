"""The text to learn, and which part of it each rank reads in a step."""

import random
from functools import cache
from pathlib import Path

import torch


def text() -> str:
    """English prose with some code in it, about half a MB: what `help()` knows of Python 3.11.

    Another Python knows other things, and a run would have other losses there, so it is kept here.
    """
    return Path(__file__).with_name("topics.txt").read_text(encoding="utf-8")


@cache
def characters(text: str) -> tuple[torch.Tensor, str]:
    """Number the characters of a text: `alphabet[ids[i]]` is `text[i]`."""
    alphabet = "".join(sorted(set(text)))
    number = {character: index for index, character in enumerate(alphabet)}
    return torch.tensor([number[character] for character in text]), alphabet


def seed_of(*numbers: int) -> int:
    """A seed of 32 bits, which is all that torch's generator takes, for some numbers in order."""
    return random.Random(repr(numbers)).getrandbits(32)


def rows_of(
    ids: torch.Tensor, step: int, *, rows: int, context: int, seed: int, rank: int, ranks: int
) -> torch.Tensor:
    """A rank's rows of a step, [rows / ranks, context + 1]; that the rows divide is checked.

    It depends on nothing else, so a run that goes on at a step needs no replay of those before; and
    all ranks together read the same `rows` rows, however many ranks there are.
    """
    draw = torch.Generator().manual_seed(seed_of(seed, step))
    starts = torch.randint(len(ids) - context, (rows,), generator=draw)
    return ids[starts.view(ranks, -1)[rank, :, None] + torch.arange(context + 1)]
