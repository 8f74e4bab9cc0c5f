"""Pictures of who sends what to whom: what is drawn is what a job or a replay did."""

from matplotlib.axes import Axes
from matplotlib.colors import to_hex

from course import figures
from minidist.plots.style import RANK
from minidist.schedule import algorithms
from minidist.schedule.simulate import replay
from tests.support.figures import texts

SCATTER = algorithms.direct_reduce_scatter(4)
GATHER = SCATTER.backwards("direct all-gather", "all_gather", reduce=False)


def colors(axes: Axes) -> list[str]:
    return [to_hex(line.get_color()).upper() for line in axes.lines]


def test_a_job_is_drawn_with_a_line_for_each_box_that_is_not_empty() -> None:
    figure = figures.map_shuffle_reduce(
        ["a a b", "c"], [[2, 1], [0, 1]], [{"a": 2}, {"b": 1, "c": 1}]
    )
    (axes,) = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert colors(axes) == [RANK[0], RANK[1], RANK[1]], "the colour of the reducer"
    assert axes.lines[0].get_linewidth() > axes.lines[1].get_linewidth(), "two pairs and one"
    assert {"a a b", "c", "a 2", "b 1, c 1", "reducer 1", "shuffle"} <= set(texts)
    assert [t for t in texts if t.isdigit()] == ["2", "1", "0", "1"]


def test_a_training_step_shows_every_message_of_its_two_halves() -> None:
    (axes,) = figures.step_as_reduce(replay(SCATTER), replay(GATHER)).axes
    assert len(axes.lines) == 2 * (4 * 3 + 4), "and what stays on its rank"
    assert all(colors(axes).count(RANK[rank]) == 8 for rank in range(4))
    assert [text.get_text() for text in axes.texts].count("Σ") == 4 + 16


def test_rounds_are_shares_of_the_tensor_and_lines_as_thick() -> None:
    out = algorithms.naive_broadcast(4)
    whole, parts = figures.message_rounds(replay(out), replay(SCATTER))
    assert whole == {(0, 1): 1, (0, 2): 1, (0, 3): 1}
    assert parts == {(s, d): 0.25 for s in range(4) for d in range(4) if s != d}
    left, right = figures.messages({"one": [whole], "all": [parts]}, 4).axes
    lines = [[line for line in axes.lines if len(line.get_xdata()) == 2] for axes in (left, right)]
    assert [len(each) for each in lines] == [3, 12]
    assert lines[0][0].get_linewidth() > lines[1][0].get_linewidth()
    assert [list(line.get_xdata()) for line in lines[0]] == [[0, 1], [0, 2], [0, 3]]


def test_after_a_death_only_the_dead_rank_s_links_are_cut() -> None:
    (axes,) = figures.after_a_death(4, dead=2).axes
    links = [line.get_linestyle() for line in axes.lines if len(line.get_xdata()) == 2]
    assert links == ["-", ":", ":"]
    dashed = [patch for patch in axes.patches if patch.get_linestyle() == "--"]
    assert len(dashed) == 4 + 2, "all gradients, and the state of one rank"


def test_two_collectives_in_a_row_show_what_each_of_them_promises() -> None:
    deal, gather = algorithms.direct_scatter(4), algorithms.ring_all_gather(4)
    both = deal.then(gather, "both", "broadcast")
    rows = {"broadcast": (replay(deal), replay(both))}
    figure = figures.in_a_row(rows, {"broadcast": ("scatter", "all_gather")})
    before, between, after = figure.axes
    blank = [""] * 4
    assert texts(before) == ["0"] * 4 + blank * 3
    assert texts(between) == ["0", *blank, "0", *blank, "0", *blank, "0"]
    assert texts(after) == ["0"] * 16


def test_blocks_are_regrouped_by_receiver_and_as_wide_as_they_are_large() -> None:
    before, after = figures.uneven_blocks([[2, 1], [0, 3]], "words").axes
    assert texts(before) == ["0→0", "0→1", "3", "1→1", "3"]
    assert texts(after) == ["0→0", "2", "0→1", "1→1", "4"]
    widths = [patch.get_width() for patch in after.patches]  # type: ignore[attr-defined]
    assert widths == [2, 2, 1, 1, 3, 3], "each is filled and outlined"


def test_a_mesh_says_whose_parts_each_rank_holds() -> None:
    states = [("own", [[[0], [1]], [[2], [3]]]), ("all", [[[0, 1, 2, 3]] * 2] * 2)]
    own, everything = figures.mesh_sums(states).axes
    assert texts(own) == list("0123")
    assert texts(everything) == ["Σ"] * 4


def test_with_nccl_the_program_does_not_wait() -> None:
    gloo, nccl = figures.waiting().axes
    dashed = [
        [p.get_y() for p in axes.patches if p.get_linestyle() == "--"] for axes in (gloo, nccl)
    ]  # type: ignore[attr-defined]
    assert dashed == [[0.1], [1.1]], "the program; the GPU's stream"
