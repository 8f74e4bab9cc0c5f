"""Pictures of memory: what is drawn is what was handed in, and the peak is the largest sum."""

from matplotlib.patches import Rectangle

from course import figures


def test_a_block_has_a_cell_for_each_d_numbers_that_it_keeps() -> None:
    (axes,) = figures.block_memory([("a", "input", 1), ("+", "nothing", 0), ("b", "x", 4)]).axes
    cells = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_hatch()]
    assert [round(cell.get_y()) for cell in cells] == [0, 2, 2, 2, 2]
    texts = [text.get_text() for text in axes.texts]
    assert {"d  input", "nothing", "4d  x", "together 5d"} <= set(texts)


def test_the_peak_of_a_step_is_the_largest_sum_of_its_parts() -> None:
    small = {"parameters": [5.0, 5.0, 5.0], "activations": [0, 1.0, 0], "gradients": [0, 0, 4.0]}
    large = small | {"activations": [0.0, 20.0, 0.0]}
    phases = {"forward": (0.0, 1.0), "backward": (1.0, 2.0)}
    one, two = figures.step_memory({"one": small, "two": large}, [0, 1, 2], phases).axes
    peaks = [axes.lines[0].get_xydata().tolist() for axes in (one, two)]
    assert peaks == [[[2, 9]], [[1, 25]]]
    assert one.get_ylim() == two.get_ylim()
    named = [{text.get_text() for text in axes.texts} for axes in (one, two)]
    assert "activations" not in named[0], "too low for a name"
    assert {"activations", "gradients", "peak 25 GB"} <= named[1]


def test_a_ranks_parts_lie_end_to_end_and_its_peak_is_marked() -> None:
    ranks = {"DDP": {"parameters": 2.0, "other": 3.0}, "FSDP": {"parameters": 1.0, "other": 0.5}}
    (axes,) = figures.rank_memory(ranks, {"DDP": 4.0, "FSDP": 1.2}, ("one GPU", 3.0)).axes
    bars = [(p.get_x(), p.get_width()) for p in axes.patches if isinstance(p, Rectangle)]
    assert bars == [(0, 2), (2, 3), (0, 1), (1, 0.5)]
    assert [line.get_xdata()[0] for line in axes.lines] == [4, 1.2, 3]
