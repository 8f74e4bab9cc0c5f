"""The page of recorded results: its tables, and what its sentences say of the records."""

from matplotlib.patches import Rectangle

from course.pages import rates, results
from course.pages.recorded import recorded, small_job, split_layers
from minidist.planner.hardware import (
    A100,
    ACCELERATORS,
    B200,
    ETHERNET_100,
    H100,
    H200,
    PCIE_5,
)
from minidist.planner.jobs import LARGE, MEDIUM, SMALL


def test_bars_have_a_height_for_each_wrapper_and_a_line_at_pytorchs() -> None:
    for ratios, ranks in ((results.steps_on_cpu(), 4), (results.steps_on_gpu(), 1)):
        axes = results.bars(ratios, ranks).axes[0]
        heights = [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]
        assert len(heights) == len(results.WAYS) * len(results.MAKERS)
        assert heights[:4] == [ratios[r, way, ranks] for r, way, *_ in results.WAYS.values()]
        assert [list(line.get_ydata()) for line in axes.lines] == [[1, 1]]  # type: ignore[arg-type]


def test_folded_tables_have_all_rows() -> None:
    cpu = results.steps_on_cpu()
    for shown, rows in (
        (results.all_steps(cpu), len(cpu) // 2),
        (results.collectives(), 8),
        (results.beside_predicted(), len(small_job())),
        (results.all_parts(), len(split_layers())),
    ):
        assert shown.data.startswith("<details>\n<summary>All ")
        assert shown.data.count("\n| ") == rows + 2


def test_steps_are_as_the_page_says() -> None:
    cpu, gpu = results.steps_on_cpu(), results.steps_on_gpu()
    for place, (low, high) in enumerate(((0.6, 0.83), (0.86, 1.07), (0.48, 0.83))):
        of = [cpu[record, ways[place], 4] for record, *ways in results.WAYS.values()]
        assert low <= min(of) < max(of) <= high
    for place, (low, high) in enumerate(((1.18, 1.62), (0.94, 1.2), (0.8, 1.3))):
        of = [gpu[record, ways[place], 1] for record, *ways in results.WAYS.values()]
        assert low <= min(of) < max(of) <= high
    for record, way, native, _ in results.WAYS.values():
        assert gpu[record, way, 1] > gpu[record, native, 1]


def test_checks_came_out_as_the_page_says() -> None:
    rows = recorded("gpu")["rows"]
    checks = [row for row in rows if row["section"] == "several GPUs"]
    assert sum("skipped" in row for row in checks) == 6
    assert all(row["right"] for row in checks if "skipped" not in row)
    assert all(row["wrong"] == [] for row in rows if row["section"] == "correctness")
    exact = [r for r in rows if r["section"] == "stream order" or r.get("what") == "losses"]
    assert all(row["right"] for row in exact)
    suites = [row for row in recorded("gpu_suites")["rows"] if row["section"] == "suites"]
    assert len(suites) == 26
    assert not any(row["wrong"] for row in suites)


def test_the_small_job_takes_what_was_predicted_but_for_few_tokens() -> None:
    by = {}
    for row in small_job():
        assert abs(results.predicted("peak", row) / row["peak_bytes"] - 1) < 0.0025
        ratio = 1e3 * results.predicted("step", row) / row["ms"][1]
        by[row["way"], row["tokens"], row["checkpointed"]] = ratio
    assert 0.9 < by["single", 8192, False] < 0.95 < by["single", 8192, True] < 1.02
    assert by["single", 2048, False] < 0.65 < 0.75 < by["ddp, views, fused", 2048, False] < 0.85


def test_each_run_of_the_small_job_has_a_bar_and_a_mark() -> None:
    axes = results.small_times().axes[0]
    assert len(axes.get_yticklabels()) == len(small_job())
    (marks,) = axes.lines
    assert [float(x) for x in marks.get_xdata()] == [  # type: ignore[union-attr]
        1e3 * results.predicted("step", row) for row in small_job()
    ]


def test_the_rate_is_that_of_wide_models() -> None:
    assert all(0.97 < told / took < 1.03 for width, told, took in results.widths() if width > 512)


def test_seen_rates_stand_beside_the_formulas() -> None:
    shares = rates.reached_by_width()
    assert [*shares] == ["A100", "H100", "H200"]
    assert [*shares["H200"]] == [1024, 2048, 4096]  # at 512 it waits for the host
    axes = rates.utilization().axes[0]
    assert [line.get_linestyle() == "-" for line in axes.lines] == [True, False] * 3
    timed = rates.layers_alone()
    assert {width for width, _ in timed} == {job.width for job in (SMALL, MEDIUM, LARGE)}
    assert {way for _, way in timed} == {*rates.WAYS}
    both = rates.layers_alone("gpu_rates_h200")
    cast = {(job.width, "autocast, compiled") for job in (MEDIUM, LARGE)}
    assert {*timed} - {*both} == cast  # the two dashes: no time was left
    text = rates.layers_beside().data.partition("\n\n")[2]
    assert text.count("·\N{NO-BREAK SPACE}–") == 2
    assert "–" not in text.replace("·\N{NO-BREAK SPACE}–", "")
    bars = [each for each in rates.layer_bars().axes[0].patches if isinstance(each, Rectangle)]
    assert len(bars) == 5 * 3
    assert rates.clock(SMALL) < rates.clock(MEDIUM) < rates.clock(LARGE) < H100.flops


def test_rates_are_those_of_the_data_sheets_in_bytes_and_each_way() -> None:
    gpus = [A100, H100, H200, B200]
    assert {*gpus} < {*ACCELERATORS.values()}
    assert [gpu.network * 8 / 1e9 for gpu in gpus] == [200, 400, 400, 400]
    assert [2 * gpu.nvlink / 1e9 for gpu in gpus] == [600, 900, 900, 1800]
    assert ETHERNET_100 == 100 / 8 * 1e9
    assert PCIE_5 == 16 * 4e9
    assert H100.node_network == 8 * 50e9 == 400e9
    assert 79.6 * 1024 < 81_559 <= 80 * 1024  # MiB that the driver reports of an H100


def test_rates_are_as_the_page_says() -> None:
    assert H200.flops == H100.flops
    for assumed in ("half_width", "attention"):
        assert getattr(B200, assumed) == getattr(H100, assumed)
    assert 0.3 < H100.attention < 0.4
    assert 0.5 < A100.attention < 0.6
    timed = rates.layers_alone()
    for job in (SMALL, MEDIUM, LARGE):
        for way, most in (("autocast", 1.2), ("bf16", 1.4)):
            matrices = timed[job.width, way]["matrices_tflops"] * 1e12
            assert 0.98 < matrices / H100.rate(job.width) < most


def test_layers_alone_and_in_eight_bits_are_as_the_page_of_rates_says() -> None:
    said = rates.of_layers()
    assert 0.01 < said["h200_autocast_least"] < said["h200_autocast_most"] < 0.105
    assert 0.01 < said["h200_bf16_least"] < said["h200_bf16_most"] < said["h200_autocast_most"]
    assert 1.8 < said["fp8_products"] < 1.85
    assert 1.0 < said["fp8_cast"] < 1.05
