"""The pictures of the chapter on clusters show what they are given."""

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest

from course import figures
from tests.support.figures import texts


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def test_each_rank_sits_on_its_node_with_the_numbers_it_was_told() -> None:
    everyone = [
        {"RANK": rank, "WORLD_SIZE": 6, "GROUP_RANK": rank // 3, "LOCAL_RANK": rank % 3}
        | {"LOCAL_WORLD_SIZE": 3, "MASTER_ADDR": "10.0.0.1", "address": f"10.0.0.{1 + rank // 3}"}
        for rank in range(6)
    ]
    (axes,) = figures.seats(everyone).axes
    said = texts(axes)
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert [text for text in said if text.startswith("RANK")] == [f"RANK {r}" for r in range(6)]
    for rank in range(3):
        (x, y), (same, below) = places[f"RANK {rank}"], places[f"RANK {rank + 3}"]
        assert (x, y) < (same, below)
        assert x == pytest.approx(same)
        assert said.count(f"→ cuda:{rank}") == said.count(f"local rank {rank}") == 2
    assert said.count("all meet here") == 1
    assert "node 1, address 10.0.0.2" in said
    assert "WORLD_SIZE = 6, for all" in said


def test_the_rename_comes_after_every_rank_has_written() -> None:
    (axes,) = figures.async_save("step-2", "step-4").axes
    bars = {
        (patch.get_y(), patch.get_x()): patch.get_x() + patch.get_width() for patch in axes.patches
    }
    (renamed,) = {line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"}
    assert all(end <= renamed + 1e-9 for (row, _), end in bars.items() if row >= 1)
    assert {"step-2", "step-2, step-4.unfinished", "step-2, step-4"} <= {*texts(axes)}


def test_what_is_lost_is_drawn_with_its_parts() -> None:
    shares = [(0.4, 0.1), (0.2, 0.15), (0.1, 0.4)]
    (axes,) = figures.time_lost([1, 10, 100], shares, {10: 0.3}, (12, 0.34)).axes
    drawn = [np.asarray(line.get_ydata(), dtype=float) for line in axes.lines[:5]]
    saving, again, total, simulated, star = drawn
    assert saving.tolist() == [40, 20, 10]
    assert again.tolist() == [10, 15, 40]
    assert total == pytest.approx([50, 35, 50])
    assert simulated.tolist() == [30]
    assert star == pytest.approx([34])


def test_lives_lie_on_the_run_and_what_is_done_twice_is_hatched() -> None:
    whole = [4 - 0.1 * step for step in range(20)]
    first = {step: whole[step] for step in range(9)}
    parts = [
        figures.Life("first", first, killed=True),
        figures.Life("second", {step: whole[step] for step in range(6, 20)}),
    ]
    above, below = figures.lives(whole, parts).axes
    assert np.asarray(above.lines[0].get_ydata()).tolist() == whole
    for line, life in zip(above.lines[1:], parts, strict=True):
        assert dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) == life.losses
    twice = sorted(patch.get_x() + 0.5 for patch in below.patches if patch.get_width() == 1)
    assert twice == [6, 7, 8]
    assert len(below.lines) == 1, "one cross"
