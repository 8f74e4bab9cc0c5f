"""What is drawn in a panel of a figure."""

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def lines(axes: Axes) -> list[str]:
    """The same, line by line."""
    return [line for text in texts(axes) for line in text.split("\n")]


def boxes(axes: Axes) -> list[Rectangle]:
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def arrows(axes: Axes) -> list[FancyArrowPatch]:
    return [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
