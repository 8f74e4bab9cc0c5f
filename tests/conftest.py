"""Each test draws on figures of its own."""

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")
