"""Pictures that only the book's pages use: what is drawn is what was handed in."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from course import figures
from course.figures.beyond import pipelined
from course.figures.choosing import parts_at_peak
from course.figures.ddp import BINS
from course.figures.ring import place
from course.figures.zero import LAYERS, lay_out
from minidist.memory.state import MIXED, share, state
from minidist.planner.hardware import H100, PCIE_5
from minidist.planner.planner import plan
from minidist.planner.sizes import Sizes
from minidist.plots import COLORS, style
from minidist.schedule.algorithms import ring_all_reduce


def test_bars_stand_on_each_other_and_lack_what_they_lack() -> None:
    bars = {"a": {"w": 1.0, "g": 2.0, "o": 4.0}, "b": {"g": 5.0}}
    figure = figures.stacked_bars(bars, y_label="GB", marks=("measured", {"a": 6.5, "b": 3.0}))
    (axes,) = figure.axes
    drawn = [(p.get_x() > 0.5, p.get_y(), p.get_height()) for p in axes.patches]
    assert drawn[::2] == [(False, 0, 1), (False, 1, 2), (False, 3, 4)]
    assert drawn[1::2] == [(True, 0, 0), (True, 0, 5), (True, 5, 0)]
    assert list(axes.lines[0].get_ydata()) == [6.5, 3]
    names = sorted(text.get_text() for text in figure.legends[0].texts)
    assert names == ["g", "measured", "o", "w"]
    assert axes.get_title("left") == "GB"


@pytest.mark.parametrize(("parts", "local"), [([[0, 1], [2], []], 2), ([["x"]], 1)])
def test_every_sample_is_in_one_box_of_its_rank(parts: list[list[object]], local: int) -> None:
    (axes,) = figures.batch_shares(parts, local).axes
    boxes = [p.get_xy() for p in axes.patches if isinstance(p, Rectangle)]
    texts = [text.get_text() for text in axes.texts]
    assert len(boxes) == sum(map(len, parts))
    assert len(set(boxes)) == len(boxes), "no box lies on another"
    for rank, part in enumerate(parts):
        assert f"rank {rank}" in texts
        assert f"local {rank % local}" in texts
        assert all(str(sample) in texts for sample in part)
    nodes = [text for text in texts if text.startswith("node")]
    assert nodes == [f"node {node}" for node in range(-(-len(parts) // local))]


def test_links_of_the_machine_are_as_wide_as_they_are_fast() -> None:
    (axes,) = figures.machine(H100, PCIE_5).axes
    bands = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_gid() == "link"]
    width = {round(max(band.get_width(), 0.0), 6) for band in bands}
    rates = (H100.bandwidth, H100.nvlink, PCIE_5, H100.network)
    assert sorted(width) == pytest.approx(sorted(52 * r / H100.bandwidth for r in rates), rel=1e-4)
    assert len(bands) == 3 * len(rates)
    texts = "\n".join(text.get_text() for text in axes.texts)
    assert all(f"{rate / 1e9:.0f} GB/s" in texts for rate in rates[1:])


def test_a_model_fills_as_many_gpus_as_it_takes() -> None:
    models = {"a": {"parameters": 10.0, "gradients": 15.0}, "b": {"optimizer state": 4.0}}
    (axes,) = figures.filled(models, 10.0, across=2).axes
    squares = [p for p in axes.patches if isinstance(p, Rectangle) and not p.get_fill()]
    assert len(squares) == 3 + 1
    area: dict[str, float] = {}
    for container in axes.containers:
        area[str(container.get_label())] = area.get(str(container.get_label()), 0) + sum(
            p.get_width() for p in container.patches
        )
    side = squares[0].get_width()
    wanted = {"parameters": 1.0, "gradients": 1.5, "optimizer state": 0.4}
    assert {name: wide / side for name, wide in area.items()} == pytest.approx(wanted)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a\n2.5 GPUs", "b\n0.40 GPU"]


def test_strong_scaling_adds_what_is_computed_and_what_is_moved() -> None:
    counts, computing, moving = [1, 2, 4], [8.0, 4.0, 2.0], [0.0, 1.0, 1.5]
    (axes,) = figures.strong_scaling(counts, computing, moving, crossing=3).axes
    drawn = {str(line.get_label()): list(np.asarray(line.get_ydata())) for line in axes.lines}
    assert drawn["computing"] == computing
    assert drawn["moving"] == moving[1:], "one rank moves nothing"
    assert drawn["both, one after the other"] == [8.0, 5.0, 3.5]
    assert "3 ranks" in [text.get_text() for text in axes.texts]


def test_each_message_of_a_step_is_an_arrow_in_its_sender_s_colour() -> None:
    step = next(iter(ring_all_reduce(4)))
    (axes,) = figures.idea(step, 4, [("Drawn", "step by step"), ("Run", "for real")]).axes
    arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    drawn = [to_rgb(arrow.get_edgecolor()) for arrow in arrows]
    assert drawn == [to_rgb(style.RANK[message.src]) for message in step]
    rank_0, *others = (circle.get_center() for circle in axes.patches if isinstance(circle, Circle))
    assert rank_0 == place(0, 4) == pytest.approx((0, 1.3)), "on top"
    assert others[0] == place(1, 4) == pytest.approx((1.15, 0)), "rank 1 follows clockwise"
    texts = {text.get_text() for text in axes.texts}
    assert {"Drawn", "Run", *(f"chunk {c}" for c in range(4))} <= texts


# What each of four ranks draws of ten samples, in order.
DRAWN = [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


def test_the_picture_of_an_epoch_crosses_out_what_is_repeated() -> None:
    figure = figures.epoch(DRAWN, batch=2)
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == list("012345678901")
    assert len(axes.lines) == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2"]
    colors = [patch.get_facecolor() for patch in axes.patches]
    assert len(set(colors)) == 2
    assert colors.count(colors[0]) == 8, "two samples of each of four ranks"


def test_the_map_shows_each_winner_in_its_own_colour_and_names_it() -> None:
    best = {"a": {8: ["x", "x", "x", "z"], 16: ["x", "z", "z", "z"]}, "b": {8: ["x"] * 4}}
    figure = figures.winners(best, [2.0, 4.0, 8.0, 16.0], ["x", "y", "z"])
    left, right = figure.axes
    assert [text.get_text() for text in left.texts] == ["x", "z"]
    assert [text.get_text() for text in right.texts] == ["x"]
    assert [label.get_text() for label in left.get_yticklabels()] == ["8", "16"]
    colors = mesh_colors(left)
    x, z = to_rgb(COLORS[0]), to_rgb(COLORS[2])
    assert colors == [[x, x, x, z], [x, z, z, z]]


def mesh_colors(axes: Axes) -> list[list[tuple[float, ...]]]:
    (mesh,) = axes.collections
    mesh.update_scalarmappable()
    rgb = mesh.get_facecolor().reshape(2, 4, 4)  # type: ignore[union-attr]
    return [[tuple(cell[:3]) for cell in row] for row in rgb.tolist()]


# ---- gradients ----


NAMES = ["0.weight", "0.bias", "2.weight"]
OWN = [
    {"0.weight": torch.full((40, 2), 2.0), "0.bias": torch.tensor([1.0]), "2.weight": ones}
    for ones in (torch.ones(3), -torch.ones(3))
]
AVERAGED = [OWN[0] | {"2.weight": torch.zeros(3)}] * 2
BUCKETS = {"naive": [["2.weight"], ["0.bias"], ["0.weight"]], "flat": [NAMES[::-1]]}


def strips(axes: Axes) -> list[list[list[float]]]:
    """Of each rank the rows, from the colours' values."""
    shape = (len(NAMES), BINS)
    return [np.asarray(mesh.get_array()).reshape(shape).tolist() for mesh in axes.collections]


def test_gradients_before_and_after_they_are_averaged_and_their_buckets() -> None:
    figure = figures.gradients(OWN, AVERAGED, BUCKETS)
    before, after, places = figure.axes
    assert strips(before) == [[[1.0] * BINS] * 3, [[-1.0] * BINS, [1.0] * BINS, [1.0] * BINS]]
    assert strips(after) == [[[0.0] * BINS, [1.0] * BINS, [1.0] * BINS]] * 2
    assert [label.get_text() for label in before.get_yticklabels()] == NAMES[::-1]
    assert [label.get_text() for label in after.get_xticklabels()] == ["0", "1"]
    numbers = {
        (int(text.get_position()[1]), int(text.get_position()[0])): text.get_text()
        for text in places.texts
    }
    assert numbers == {
        (0, 0): "0", (1, 0): "1", (2, 0): "2",
        (0, 1): "0", (1, 1): "0", (2, 1): "0",
    }  # fmt: skip
    assert [label.get_text() for label in places.get_xticklabels()] == ["naive", "flat"]


# ---- ZeRO ----


def test_a_rank_s_column_holds_what_share_says_and_its_slice_lies_as_high_as_its_number() -> None:
    figure = figures.who_holds(MIXED, 4, {"DDP": 0, "ZeRO-1": 1, "ZeRO-2": 2, "ZeRO-3": 3})
    for stage, axes in enumerate(figure.axes):
        bars = [p for p in axes.patches if p.get_facecolor()[3] > 0 and isinstance(p, Rectangle)]
        held = sum(bar.get_height() for bar in bars if bar.get_fill())
        assert held == 4 * share(state(4, MIXED), 4, stage).total
    assert [a.get_title().split(": ")[1].split()[0] for a in figure.axes] == ["16", "7", "5.5", "4"]
    slices = [p for p in figure.axes[3].patches if isinstance(p, Rectangle) and p.get_fill()]
    assert [p.get_y() for p in slices if p.get_height() == 12] == [16, 28, 40, 52]


def test_the_flat_layout_pads_to_equal_shards() -> None:
    (axes,) = figures.flat_layout({"a": 5, "b": 2}, 4).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == [f"a[{i}]" for i in range(5)] + ["b[0]", "b[1]", "pad"] + [
        f"rank {rank}" for rank in range(4)
    ]


@pytest.mark.parametrize(("stage", "units", "peak"), [(0, 2, 12), (1, 2, 7.5), (2, 2, 6)])
def test_a_step_sends_the_stage_s_units_and_ends_with_what_it_began(
    stage: int, units: int, peak: float
) -> None:
    step = lay_out(stage)
    messages = [box for box in step.boxes if box.lane]
    curve = step.curve()
    assert len(messages) == units * LAYERS
    assert curve[-1][1] == pytest.approx(curve[0][1])
    assert max(sum(held.values()) for _, held in curve) == pytest.approx(peak)
    for lane in (0, 1):
        own = sorted(box for box in step.boxes if box.lane == lane)
        own.sort(key=lambda box: box.start)
        assert all(one.end <= other.start for one, other in pairwise(own))


def test_stage_3_gathers_twice_and_holds_one_layer_s_weights_at_a_time() -> None:
    step = lay_out(3)
    kinds = [box.kind for box in step.boxes if box.lane]
    assert (kinds.count("all-gather"), kinds.count("reduce-scatter")) == (2 * LAYERS, LAYERS)
    held = [held["parameters"] for _, held in step.curve()]
    assert (max(held), held[-1]) == (LAYERS / 4 + 1, LAYERS / 4)
    assert len(figures.zero_step([1, 3]).axes) == 4


# ---- beyond data parallelism ----


@pytest.mark.parametrize(
    ("kind", "tokens", "weights"),
    [
        ("data", "0123", ["all ranks"]),
        ("tensor", ["all ranks"], "0123"),
        ("pipeline", ["all ranks"], "0123"),
        ("context", "0123", ["all ranks"]),
        ("expert", "0123", ["all ranks"] * 2 + [*"00112233"]),
    ],
)
def test_each_kind_splits_tokens_or_weights(
    kind: str, tokens: list[str], weights: list[str]
) -> None:
    left, right = figures.split(kind).axes
    assert sorted(text.get_text() for text in left.texts) == sorted(tokens)
    assert sorted(text.get_text() for text in right.texts) == sorted(weights)


def test_a_pipeline_s_stage_does_one_thing_at_a_time_and_after_its_neighbour() -> None:
    passes = {(p.kind, p.stage, p.micro): p.start for p in pipelined(4, 3)}
    for (kind, stage, micro), start in passes.items():
        takes, before = (1, stage - 1) if kind == "forward" else (2, stage + 1)
        assert passes.get((kind, before, micro), -takes) + takes <= start
        assert passes.get((kind, stage, micro - 1), -takes) + takes <= start
    assert max(passes.values()) + 2 == 3 * (4 + 3 - 1)
    assert len(figures.pipeline_stages(4, 3).axes[0].patches) == len(passes) == 24


# ---- choosing ----


def test_the_parts_at_the_peak_add_up_to_it() -> None:
    for batch in (1, 4, 16):
        found = plan(Sizes.gpt(34, 4096, 32_000, 2048), "H100", 16, batch=batch).forecasts
        figure = figures.what_fits(found, 80e9)
        for name, each in found.items():
            parts = parts_at_peak(each, unit=1)
            assert sum(parts.values()) == pytest.approx(each.peak), name
            assert min(parts.values()) >= 0
        peaks = [f"{each.peak / 1e9:.0f}" for each in found.values()]
        assert [text.get_text() for text in figure.axes[0].texts] == [*peaks, "80 GB of one GPU"]


def test_the_ladder_asks_until_the_first_two_times_yes() -> None:
    rungs = [
        figures.Rung("a", "9 of 8", False),
        figures.Rung("b", "7 of 8", True, "50 %", False),
        figures.Rung("c", "6 of 8", True, "99 %", True),
        figures.Rung("d", "5 of 8", True, "100 %", True),
    ]
    (axes,) = figures.ladder(rungs, "none").axes
    words = [text.get_text() for text in axes.texts if text.get_text()]
    assert words[:9] == ["a", "9 of 8", "b", "7 of 8", "50 %", "c", "6 of 8", "99 %", "d"]
    assert words[9:12] == ["not asked", "not asked", "none"]
    thick = [box.get_linewidth() > 2 for box in axes.patches if isinstance(box, Rectangle)]
    assert thick == [False] * 5 + [True] + [False] * 6
