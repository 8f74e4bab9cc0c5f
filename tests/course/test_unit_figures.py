"""Pictures of units: what is drawn is what was handed in, and what the layouts cut."""

import torch

from course import figures
from minidist.parallel.sharding.layouts import Flat, RowLayout
from minidist.profiler.spans import Span
from tests.support.figures import boxes


def test_a_units_life_counts_what_a_rank_holds() -> None:
    both = {"parameters": "whole", "gradients": "whole"}
    after = {"parameters": "shard", "gradients": "shard"}
    phases = {"forward": {"gather": {"parameters": "whole"}}, "backward": {"a": both, "b": after}}
    (axes,) = figures.unit_life(phases, ranks=4).axes
    texts = [text.get_text() for text in axes.texts]
    assert [text for text in texts if text.isdigit()] == ["5", "9", "2"], "with the shard beside"
    assert [f"rank {rank}" in texts for rank in range(5)] == [True] * 4 + [False]
    cells = [box for box in boxes(axes) if box.get_width() == 0.2]
    assert sum(box.get_fill() for box in cells) == 4 * (4 + 8 + 2)


def test_units_over_time_have_a_bar_each_in_the_lane_of_their_kind() -> None:
    names = ["all-gather 0", "forward 0", "backward 0", "reduce-scatter 0"]
    spans = [Span(0, "", name, 1e-3 * i, 1e-3 * (i + 1)) for i, name in enumerate(names)]
    one, two = figures.unit_timeline({"late": spans, "ahead": spans[:3]}).axes
    bars = [(round(p.get_x()), round(p.get_y() + p.get_height() / 2)) for p in boxes(one)]
    assert bars == [(0, 1), (1, 0), (2, 0), (3, 2)]
    assert [len(one.patches), len(two.patches)] == [4, 3]
    assert one.get_xlim() == two.get_xlim()


def test_each_element_is_kept_once_and_padding_has_no_name() -> None:
    shapes = {"a": torch.Size([3, 2]), "b": torch.Size([5])}
    kept = figures.elements_kept(shapes, {"flat": Flat, "rows": RowLayout}, ranks=4)
    assert kept["flat"] == [["a0", "a1", "a2"], ["a3", "a4", "a5"], ["b0", "b1", "b2"],
                            ["b3", "b4", ""]]  # fmt: skip
    assert kept["rows"][2:] == [["a4", "a5", "b4", ""], [""] * 4]
    for axes in figures.cuts(shapes, kept).axes:
        named = [text.get_text() for text in axes.texts]
        assert all(named.count(f"b{index}") == 2 for index in range(5)), "in place, and on a rank"


def test_a_mesh_has_a_box_for_each_rank_with_one_shard_filled() -> None:
    (axes,) = figures.mesh(2, 4).axes
    strips = [box for box in boxes(axes) if box.get_width() < 0.5]
    assert sum(box.get_fill() for box in strips) == 8
    assert len(strips) == 8 * 4
