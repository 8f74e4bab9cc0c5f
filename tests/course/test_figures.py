"""Charts and sketches of the book: what is drawn is what was handed in."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from course import figures
from course.chapters.beyond.figures import SPLITS
from course.chapters.pipelines.figures import gaps, order_of
from course.figures import Curve, budget, curves
from minidist.memory.state import MIXED, share, state
from minidist.planner.hardware import H100, PCIE_5
from minidist.plots.style import ALGORITHM, COLORS
from minidist.schedule.pipeline import bubble, dual_pipe_v, gpipe, one_f_one_b, replay, zero_bubble
from tests.support.figures import boxes, lines, texts


def test_parts_of_a_bar_lie_end_to_end_and_lack_what_they_lack() -> None:
    bars = {"a": {"w": 1.0, "g": 2.0, "o": 4.0}, "b": {"g": 5.0}}
    figure = figures.stacked_bars(bars, x_label="GB", marks=("measured", {"a": 6.5, "b": 3.0}))
    (axes,) = figure.axes
    drawn = [(int(p.get_y()), p.get_x(), p.get_width()) for p in boxes(axes)]
    assert drawn == [(0, 0, 1), (0, 1, 2), (0, 3, 4), (1, 0, 5)]
    assert axes.lines[0].get_xydata().tolist() == [[6.5, 0.5], [3, 1.5]]
    names = sorted(text.get_text() for text in figure.legends[0].texts)
    assert names == ["g", "measured", "o", "w"]
    assert axes.get_xlabel() == "GB"


@pytest.mark.parametrize(("parts", "local"), [([[0, 1], [2], []], 2), ([["x"]], 1)])
def test_every_sample_is_in_one_box_of_its_rank(parts: list[list[object]], local: int) -> None:
    (axes,) = figures.batch_shares(parts, local).axes
    corners = [p.get_xy() for p in boxes(axes)]
    said = lines(axes)
    assert len(corners) == sum(map(len, parts))
    assert len(set(corners)) == len(corners), "no box lies on another"
    for rank, part in enumerate(parts):
        assert f"rank {rank}" in said
        assert f"local {rank % local}" in said
        assert all(str(sample) in said for sample in part)
    nodes = [text for text in said if text.startswith("node")]
    assert nodes == [f"node {node}" for node in range(-(-len(parts) // local))]


def test_links_of_the_machine_are_as_wide_as_they_are_fast() -> None:
    (axes,) = figures.machine(H100, PCIE_5).axes
    bands = [p for p in boxes(axes) if p.get_gid() == "link"]
    width = {round(max(band.get_width(), 0.0), 6) for band in bands}
    rates = (H100.bandwidth, H100.nvlink, PCIE_5, H100.network)
    assert sorted(width) == pytest.approx(sorted(52 * r / H100.bandwidth for r in rates), rel=1e-4)
    assert len(bands) == 3 * len(rates)
    said = "\n".join(texts(axes))
    assert all(f"{rate / 1e9:.0f} GB/s" in said for rate in rates[1:])


def test_a_model_fills_as_many_gpus_as_it_takes() -> None:
    models = {"a": {"parameters": 10.0, "gradients": 15.0}, "b": {"optimizer state": 4.0}}
    (axes,) = figures.filled(models, 10.0, across=2).axes
    squares = [p for p in boxes(axes) if not p.get_fill()]
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


# What each of four ranks draws of ten samples, in order.
DRAWN = [[0, 4, 8], [1, 5, 9], [2, 6, 0], [3, 7, 1]]


def test_the_picture_of_an_epoch_crosses_out_what_is_repeated() -> None:
    figure = figures.epoch(DRAWN, batch=2)
    (axes,) = figure.axes
    assert texts(axes) == [str(sample) for own in DRAWN for sample in own]
    assert len(axes.lines) == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 1", "step 2"]
    colors = [patch.get_facecolor() for patch in axes.patches]
    assert len(set(colors)) == 2
    assert colors.count(colors[0]) == 8, "two samples of each of four ranks"


def test_the_map_shows_each_winner_in_its_own_colour_and_names_it() -> None:
    ring, other = "ring", "hierarchical"
    rows = {8: [ring, ring, ring, other], 16: [ring, other, other, other]}
    best = {"a": rows, "b": {8: [ring] * 4}}
    sizes, mark = [2.0, 4.0, 8.0, 16.0], {"here": 3.0}
    figure = figures.winners(best, sizes, [ring, "tree", other], mark)
    left, right = figure.axes
    assert sorted(texts(left)) == ["here", other, ring]
    assert sorted(texts(right)) == ["here", ring]
    assert [label.get_text() for label in left.get_yticklabels()] == ["8", "16"]
    colors = mesh_colors(left)
    x, z = to_rgb(ALGORITHM[ring]), to_rgb(ALGORITHM[other])
    assert colors == [[x, x, x, z], [x, z, z, z]]
    for text in (*left.texts, *right.texts):  # no name is struck through by the mark
        at = text.get_position()[0]
        assert text.get_text() == "here" or abs(np.log2(at) - np.log2(3.0)) > 0.5


def mesh_colors(axes: Axes) -> list[list[tuple[float, ...]]]:
    (mesh,) = axes.collections
    mesh.update_scalarmappable()
    rgb = mesh.get_facecolor().reshape(2, 4, 4)  # type: ignore[union-attr]
    return [[tuple(cell[:3]) for cell in row] for row in rgb.tolist()]


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
    said = texts(axes)
    assert said == [f"a[{i}]" for i in range(5)] + ["b[0]", "b[1]", "pad"] + [
        f"rank {rank}" for rank in range(4)
    ]


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
    row = [*SPLITS].index(kind)
    left, right = figures.splits().axes[2 * row : 2 * row + 2]
    assert left.get_title(loc="left") == f"{kind}: tokens"
    assert sorted(text.get_text() for text in left.texts) == sorted(tokens)
    assert sorted(text.get_text() for text in right.texts) == sorted(weights)


# ---- pipelines ----


def test_a_pipeline_is_drawn_as_it_is_replayed_and_says_what_it_holds() -> None:
    orders = {"GPipe": gpipe(4, 8), "1F1B": one_f_one_b(4, 8), "zero bubble": zero_bubble(4, 8)}
    orders["DualPipeV"] = dual_pipe_v(2, 4)
    panels = {name: replay(order) for name, order in orders.items()}
    assert [order_of(passes) for passes in panels.values()] == [*orders.values()]
    held = [8] * 4, [4, 3, 2, 1], [4] * 4, [2.5] * 2
    for axes, passes, most in zip(
        figures.pipelines(panels).axes, panels.values(), held, strict=True
    ):
        drawn = {(p.get_x(), int(p.get_y()), p.get_width()) for p in boxes(axes)}
        waits = {(start, rank, end - start) for rank, start, end in gaps(passes)}
        assert drawn == {(p.start, p.rank, p.end - p.start) for p in passes} | waits
        ranks, end = 1 + max(p.rank for p in passes), max(p.end for p in passes)
        assert sum(wide for *_, wide in waits) == pytest.approx(bubble(passes) * ranks * end)
        said = texts(axes)
        assert [text for text in said if "holds" in text] == [f"holds {n:g}" for n in most]
        by_rank = sorted(passes, key=lambda each: each.rank)
        assert [text for text in said if text.isdigit()] == [str(p.work.micro) for p in by_rank]


# ---- choosing ----


def test_the_ladder_asks_until_the_first_two_yeses() -> None:
    rungs = [
        figures.Rung("a", "9 of 8", False),
        figures.Rung("b", "7 of 8", True, "50 %", False),
        figures.Rung("c", "6 of 8", True, "99 %", True),
        figures.Rung("d", "5 of 8", True, "100 %", True),
    ]
    (axes,) = figures.ladder(rungs, "none").axes
    words = [text.get_text() for text in axes.texts if text.get_text()]
    assert words[:9] == ["a", "9 of 8", "b", "7 of 8", "50 %", "c", "6 of 8", "99 %", "d"]
    assert words[9:12] == ["not considered", "not considered", "none"]
    thick = [box.get_linewidth() > 2 for box in boxes(axes)]
    assert thick == [False] * 5 + [True] + [False] * 6


def test_measured_points_have_markers_and_predictions_dashes() -> None:
    lines = [Curve("one", [1, 10], [2.0, 3.0], 0), Curve("two", [1, 10], [4, 5], 1, True)]
    (axes,) = curves({"seconds": lines}, x_label="bytes").axes
    assert [np.asarray(line.get_ydata()).tolist() for line in axes.lines] == [[2.0, 3.0], [4, 5]]
    assert [line.get_marker() for line in axes.lines] == ["o", "None"]
    solid, dashed = (line.get_linestyle() for line in axes.lines)
    assert solid == "-" != dashed
    assert (axes.get_title("left"), axes.get_xlabel()) == ("seconds", "bytes")


@pytest.mark.parametrize("y_log", [True, False])
def test_curves_carry_their_names_at_their_ends_and_names_do_not_touch(y_log: bool) -> None:
    ends = {"a": 5.0, "b": 5.01, "of two words, of two": 5.02, "c": 500.0, "": 7.0}
    lines = [Curve(name, [1, 1024], [1.0, y], i, True) for i, (name, y) in enumerate(ends.items())]
    panels, ticks = {"few": lines[:1], "many": lines}, {1.0: "1 B", 1024.0: "1 KiB"}
    figure = curves(panels, x_label="", x_ticks=ticks, marks={"here": 32}, y_log=y_log)
    few, many = figure.axes
    assert few.get_ylim() == many.get_ylim()
    assert [label.get_text() for label in many.get_xticklabels()] == list(ticks.values())
    assert [np.asarray(axes.lines[-1].get_xdata())[0] for axes in (few, many)] == [32, 32]
    figure.draw_without_rendering()
    mark, *names = many.texts
    assert mark.get_text() == "here"
    assert [name.get_text() for name in names] == ["a", "b", "of two words,\nof two", "c"]
    corners = [name.get_window_extent() for name in names]
    assert all(lower.y1 <= upper.y0 for lower, upper in pairwise(corners))
    assert [name.get_color() for name in names] == list(COLORS[:4])
    assert [line.get_linestyle() for line in many.lines[:3]] == ["--", "-.", ":"]


def test_forecasts_and_measurements_are_in_place_and_the_box_is_the_budget() -> None:
    forecast = {"ddp": (7.0, 15.0), "hsdp": (6.5, 9.8)}
    figure = budget((8.0, 11.0), forecast, [(7.2, 14.0), (6.4, 9.2)])
    (axes,) = figure.axes
    rings, marks, *joined = (np.asarray(line.get_xydata()).tolist() for line in axes.lines)
    assert rings == [[7.0, 15.0], [6.5, 9.8]]
    assert marks == [[7.2, 14.0], [6.4, 9.2]]
    assert joined == [[*pair] for pair in zip(rings, marks, strict=True)]
    (box,) = axes.patches
    assert isinstance(box, Rectangle)
    assert (box.get_xy(), box.get_width(), box.get_height()) == ((0, 0), 8, 11)
    assert set(texts(axes)) == {"the budget", *forecast}
    assert axes.get_xlim()[1] > 8
    assert axes.get_ylim()[1] > 15


def test_names_of_rings_that_almost_touch_do_not() -> None:
    forecast = {"ddp": (7.4, 16.0), "zero1": (7.4, 11.0), "zero2": (7.4, 10.9), "hsdp": (6.9, 10.9)}
    (axes,) = budget((8.0, 11.0), forecast, [(6.4, 9.2)]).axes
    named = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert named["zero2"].y1 <= named["zero1"].y0 < named["zero1"].y1 <= named["ddp"].y0
    assert named["hsdp"].x1 < named["zero2"].x0
    rows = axes.transData.transform([forecast["zero1"], forecast["hsdp"]])[:, 1]
    for name, row in zip(("zero1", "hsdp"), rows, strict=True):
        assert named[name].y0 - named[name].height <= row <= named[name].y1, "beside its ring"


def test_a_block_has_a_cell_for_each_d_numbers_that_it_keeps() -> None:
    (axes,) = figures.block_memory().axes
    cells = [round(p.get_y()) for p in boxes(axes) if p.get_hatch()]
    assert [cells.count(row) for row in range(10)] == [1, 1, 3, 1, 0, 1, 1, 4, 4, 0]
    assert {"d  its input", "nothing", "4d  its input", "together 16d"} <= set(texts(axes))


def test_the_peak_of_a_step_is_the_largest_sum_of_its_parts() -> None:
    small = {"parameters": 5.0, "activations": 1.0, "gradients": 4.0, "temporary": 3.0}
    panels = {"one": small, "two": small | {"activations": 14.0, "logits": 6.0}}
    one, two = figures.step_memory(panels, 2, limit=("full", 30.0)).axes
    peaks = [axes.lines[0].get_xydata().tolist() for axes in (one, two)]
    assert peaks == [[[3, 12]], [[1, 25]]], "in the optimizer's step, and as backward begins"
    assert one.get_ylim() == two.get_ylim()
    named = [{text.get_text() for text in axes.texts} for axes in (one, two)]
    assert "activations" not in named[0], "too low for a name"
    assert {"activations", "gradients", "peak 25 GB", "full"} <= named[1]


def test_what_a_gpu_held_is_dots_over_the_step() -> None:
    levels = {"forward": [2e9, 3e9], "backward": [4e9, 5e9]}
    row = {"held_bytes": 1e9, "levels": levels, "peak_bytes_of": {"backward": 6e9, "update": 7e9}}
    (axes,) = figures.step_memory({"one": {"parameters": 5.0}}, 2, measured={"one": row}).axes
    dots = axes.lines[0].get_xydata().tolist()
    assert dots == [[0, 1], [0.5, 2], [1, 3], [1, 6], [2, 4], [3, 5], [3.375, 7]]


def test_a_ranks_parts_lie_end_to_end_and_its_peak_is_marked() -> None:
    ranks = {"DDP": {"parameters": 2.0, "other": 3.0}, "FSDP": {"parameters": 1.0, "other": 0.5}}
    (axes,) = figures.rank_memory(ranks, ("one GPU", 3.0), {"DDP": 4.0, "FSDP": 1.2}).axes
    bars = [(p.get_x(), p.get_width()) for p in boxes(axes)]
    assert bars == [(0, 2), (2, 3), (0, 1), (1, 0.5)]
    assert [[*line.get_xdata()] for line in axes.lines] == [[4, 1.2], [3, 3]]
    assert texts(figures.rank_memory(ranks, ("one GPU", 3.0)).axes[0]) == ["5", "2", "one GPU"]


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
    (axes,) = figures.async_save().axes
    bars = {
        (patch.get_y(), patch.get_x()): patch.get_x() + patch.get_width() for patch in axes.patches
    }
    (renamed,) = {line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"}
    assert all(end <= renamed + 1e-9 for (row, _), end in bars.items() if row >= 1)
    assert {"step-4", "step-4, unfinished-step-8", "step-4, step-8"} <= {*texts(axes)}


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


# ---- keep going ----


def test_a_worker_has_a_cell_for_each_round_that_it_was_in_and_marks_for_its_death() -> None:
    rounds, events = [[0, 1], [1], [1], [0, 1]], {(2, 0): "killed", (3, 0): "started"}
    above, below = figures.presence(rounds, events, [4, 3, 2, 1], [4, 2, 1, 0]).axes
    cells = sorted((int(patch.get_y()), patch.get_x()) for patch in boxes(below))
    assert cells == [(0, 0.5), (0, 3.5), *((1, n + 0.5) for n in range(4))]
    marks = {(*line.get_xydata()[0],): line.get_marker() for line in below.lines}
    assert marks == {(2, 0.5): "x", (3, 0.5): "|"}
    assert [[*line.get_ydata()] for line in above.lines] == [[4, 2, 1, 0], [4, 3, 2, 1]]


def test_each_round_begins_for_all_ranks_where_the_one_before_has_met() -> None:
    (axes,) = figures.outer_path([[1, 2, 5, 6], [3, 4, 7, 8]], [0, 3, 7], 2, 9).axes
    paths = [[*line.get_ydata()] for line in axes.lines]
    assert paths == [[0, 1, 2], [3, 5, 6], [0, 3, 4], [3, 7, 8], [0, 3, 7], [9, 9]]


def test_rounds_of_one_length_share_a_color_and_momenta_differ_in_dashes() -> None:
    lines = [
        Curve("H = 10", [1.0, 10.0], [3.0, 2.0], 0),
        Curve("H = 10, μ 0.9", [1, 10], [3, 2.5], 1),
    ]
    figure = figures.loss_over_bytes(lines)
    (axes,) = figure.axes
    assert {text.get_text(): text.xy for text in axes.texts} == {"H = 10": (10, 2)}
    plain, heavy = axes.lines
    assert plain.get_color() == heavy.get_color()
    assert plain.get_linestyle() != heavy.get_linestyle()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["plain average", "μ 0.9"]
