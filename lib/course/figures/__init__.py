"""Pictures that only pages of the book need; what a user of minidist needs is in `plots`."""

from course.figures.amounts import grouped_bars, level
from course.figures.data import batch_shares, epoch, shuffle
from course.figures.shards import gradients, holdings
from course.figures.winners import winners

__all__ = [
    "batch_shares",
    "epoch",
    "gradients",
    "grouped_bars",
    "holdings",
    "level",
    "shuffle",
    "winners",
]
