"""What others measured on GPUs: records that say where they come from, and pictures of them."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import StepPatch

from course import figures
from course.chapters.gpus import traces
from course.pages import published as module
from course.pages.predicted import GPUS, links, one_rate, throughput
from course.pages.published import curve, named, published
from course.timing.fits import at_size, bus_bandwidth, errors, fitted, through_ends, two_lines
from course.widgets import trace_stepper
from minidist.parallel.sharding.partition import MIB
from minidist.planner.hardware import ACCELERATORS, GIB
from minidist.schedule.buckets import assign
from tests.support.figures import texts

NAMES = sorted(path.stem for path in module.PUBLISHED.glob("*.json"))


@pytest.mark.parametrize("name", NAMES)
def test_a_record_says_where_it_comes_from(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    record = published(name)
    assert capsys.readouterr().out == ""
    assert {"what", "units", "extracted", "caveats"} <= {*record}
    assert record["caveats"]
    for source in module.parts(record):
        assert {"link", "name", "licence", "date", "machine", "software"} <= {*source}
        assert all(source.values())
    links = [each["link"] for each in [*module.parts(record), *record.get("curves", [])]]
    assert all(link.startswith("https://") for link in links if link != "per curve")


def test_the_table_of_sources_has_every_record_and_curve() -> None:
    text = str(module.sources().data)
    for name in NAMES:
        record = published(name)
        for each in record.get("curves", module.parts(record)):
            assert f"]({each['link']})" in text
    assert "None" not in text


def test_a_missing_record_is_named() -> None:
    with pytest.raises(FileNotFoundError, match=r"benchmarks/published/nothing\.json is missing"):
        published("nothing")
    with pytest.raises(ValueError, match=r"expected one of a100-2x8-efa, .*, got 'h100'"):
        curve("h100")


@pytest.mark.parametrize("each", published("all_reduce_curves")["curves"], ids=lambda c: c["id"])
def test_a_curve_has_rising_sizes_and_a_bandwidth_that_links_allow(each: dict[str, Any]) -> None:
    assert all(one < two for (one, _), (two, _) in pairwise(each["rows"]))
    assert max(bus_bandwidth(*row, each["ranks"]) for row in each["rows"]) < 1000


def test_lines_of_a_curve() -> None:
    rows = [(size, 20 + 0.01 * size) for size in (0, 1000, 2000, 3000)]
    bent = [*rows, *((size, 60 + 0.002 * size) for size in (1e4, 2e4, 4e4))]
    for model in (through_ends(rows), fitted(rows)):
        assert (model.start, model.slope) == pytest.approx((20, 0.01))
    both = two_lines(bent)
    assert both.at == 1e4
    assert errors(both, bent) == pytest.approx([0] * 7, abs=1e-9)
    assert errors(through_ends(bent), bent)[0] == errors(through_ends(bent), bent)[-1] == 0
    assert at_size([(1, 1), (4, 16)], 2) == pytest.approx(4)
    assert bus_bandwidth(1e9, 1e6, 2) == pytest.approx(1.0)


def test_one_line_is_off_by_two_in_the_middle_and_right_at_both_ends() -> None:
    for name in ("h100-1x8-nvls", "h100-2x8-ib", "h100-4x8-ib", "h100-2x8-efa", "a100-2x8-efa"):
        rows = curve(name)["rows"]
        wrong = dict(zip((size for size, _ in rows), errors(through_ends(rows), rows), strict=True))
        middle = [e for size, e in wrong.items() if 2**18 <= size <= 2**25]
        assert -0.66 < min(middle) < -0.5, name
        assert max(abs(e) for size, e in wrong.items() if size < 64 or size > 2**31) < 0.09, name
        assert max(map(abs, errors(two_lines(rows), rows))) < 0.27, name
    for name in ("h100-1x8-nvls", "h100-2x8-ib", "a100-1x8-nvlink"):  # the ring's figure
        rows = curve(name)["rows"]
        wrong = dict(zip((size for size, _ in rows), errors(through_ends(rows), rows), strict=True))
        assert max(wrong[2**26], wrong[2**27]) < -0.15, f"{name}: too low at 96 MiB, too"


def test_attention_s_own_share_halves_the_error_of_one_rate_for_everything() -> None:
    assert {name: gpu.attention for name, gpu in GPUS.items()} == {
        "h100_80gb": 0.35, "a100_80gb": 0.54, "a100_40gb": 0.54,
    }  # fmt: skip
    errors = sorted(abs(1 - run.ratio) for run in throughput())
    assert errors[104] == pytest.approx(0.044, abs=0.002)
    fitted = one_rate()
    assert fitted == pytest.approx(0.092, abs=0.003)
    assert min(map(one_rate, (600.0, 1200.0))) > fitted


def test_line_rate_is_near_the_published_curves_and_half_of_the_time_on_64() -> None:
    found = links()
    assert sorted(found) == [8, 16, 32, 64]
    assert all(len(ratios) == 6 for ratios in found.values()), "1 to 32 MiB"
    assert max(abs(1 - ratio) for ratio in found[8]) < 0.11
    assert 0.5 < min(found[64]) == min(map(min, found.values())) < 0.52


def lanes(figure: Figure, panel: int) -> dict[int, list[tuple[float, float]]]:
    """Lane → the pieces that are drawn there."""
    found: dict[int, list[tuple[float, float]]] = {}
    for collection in figure.axes[panel].collections:
        for path in collection.get_paths():
            x, y = np.asarray(path.vertices).T
            found.setdefault(int(y.min()), []).append((x.min(), x.max()))
    return {lane: sorted(spans) for lane, spans in found.items()}


def test_the_trace_of_ddp_shows_each_bucket_where_it_was() -> None:
    record = published("ddp_trace")
    figure = figures.ddp_trace(record)
    calls = record["steps"][0]["nccl"]
    spans = [(start, start + long) for *_, start, long in calls]
    assert np.allclose(lanes(figure, 0)[1], spans)
    said = texts(figure.axes[1]) + texts(figure.axes[2])
    for number, (elements, *_) in enumerate(record["buckets"], 1):
        named = f"{number}\n{4e-6 * elements:.1f} MB" in said
        assert named == (number != 4), "bucket 4 lies between the two windows"
    assert sum(elements for elements, *_ in record["buckets"]) == record["parameters"]
    assert sum(tensors for _, tensors, *_ in record["buckets"]) == record["parameter_tensors"]


def test_the_trace_of_ddp_is_as_high_as_the_gpu_is_busy() -> None:
    step = published("ddp_trace")["steps"][0]
    axes = figures.ddp_trace(published("ddp_trace")).axes[0]
    stairs = [each.get_data() for each in axes.patches if isinstance(each, StepPatch)]
    areas = [((low - top) * np.diff(edges)).sum() for top, edges, low in stairs]
    spent = {phase: sum(b - a for a, b in spans) for phase, spans in step["compute"].items()}
    forward, backward, optimizer, copies = areas
    full = traces.BAR  # of a lane
    found = np.array([forward, backward + copies, optimizer]) / full
    assert np.allclose(found, [*spent.values()])
    assert sum(areas) / full < 0.22 * step["step_ms"], "it is not drawn as if it were busy"
    assert 0 < copies < 0.1 * backward


def resnet50() -> list[tuple[str, int]]:
    """Names and elements of its parameters, in the order of definition."""
    found = [("conv1.weight", 64 * 3 * 49), ("bn1.weight", 64), ("bn1.bias", 64)]

    def layer(name: str, norm: str, inputs: int, outputs: int, kernel: int) -> None:
        found.append((f"{name}.weight", inputs * outputs * kernel))
        found.extend((f"{norm}.{part}", outputs) for part in ("weight", "bias"))

    inputs = 64
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (6, 256), (3, 512)), 1):
        for block in range(blocks):
            here = f"layer{stage}.{block}"
            for number, sizes in enumerate(
                ((inputs, width, 1), (width, width, 9), (width, 4 * width, 1)), 1
            ):
                layer(f"{here}.conv{number}", f"{here}.bn{number}", *sizes)
            if block == 0:
                layer(f"{here}.downsample.0", f"{here}.downsample.1", inputs, 4 * width, 1)
            inputs = 4 * width
    return [*found, ("fc.weight", 2048 * 1000), ("fc.bias", 1000)]


def test_buckets_of_the_trace_are_those_of_the_rule_to_the_parameter() -> None:
    """From the last parameter to the first; the first bucket is full at 1 MiB, others at 25."""
    record, parameters = published("ddp_trace"), resnet50()
    sizes = [elements for _, elements in parameters]
    assert (sum(sizes), len(sizes)) == (record["parameters"], record["parameter_tensors"])
    found = [
        [sum(sizes[i] for i in b), len(b), parameters[max(b)][0], parameters[min(b)][0]]
        for b in assign([4 * size for size in sizes], MIB, 25 * MIB)
    ]
    assert found == record["buckets"]
    assert [round(4e-6 * elements, 1) for elements, *_ in found] == [8.2, 31.5, 26.3, 26.6, 9.7]
    for step in record["steps"]:
        calls = named(step["nccl_columns"], step["nccl"])
        sent = [call["elements"] for call in calls if call["collective"] == "all_reduce"]
        assert sent == [elements for elements, *_ in found]


def test_buffers_go_first_and_copies_out_of_the_buckets_come_last() -> None:
    trace = published("ddp_trace")
    step = trace["steps"][0]
    calls = named(step["nccl_columns"], step["nccl"])
    assert [call["elements"] for call in calls[:2]] == [53_120, 53]
    assert round(sum(call["duration_ms"] for call in calls[:2]), 2) == 0.04
    assert calls[2]["duration_ms"] > calls[3]["duration_ms"], "8.2 MB, and 31.5"
    copies = [start for start, _ in step["compute"]["backward"]]
    assert sum(start > step["last_all_reduce_end_ms"] for start in copies) > 100
    for each in trace["steps"]:
        assert each["backward_end_ms"] - each["last_all_reduce_end_ms"] > 14


def test_a_step_of_the_trace_waits_for_nothing_though_little_is_overlapped() -> None:
    for step in published("ddp_trace")["steps"]:
        assert step["last_all_reduce_end_ms"] < step["backward_end_ms"]
        share = step["all_reduce_under_a_compute_kernel_ms"] / step["all_reduce_busy_ms"]
        assert 0.15 < share < 0.18


def test_the_hidden_all_to_all_lies_under_compute() -> None:
    record = published("dualpipe_trace")
    drawn = lanes(figures.dualpipe_trace(record), 0)
    assert len(drawn[0]) == len(record["compute"])
    assert len(drawn[1]) == len(record["communication"])
    assert record["transfers_under_compute_ms"] > 0.96 * record["transfers_ms"]


@pytest.mark.parametrize("bandwidth", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_curves_stand_beside_their_line(bandwidth: bool, both: bool) -> None:
    chosen = [curve("h100-1x8-nvls"), curve("h100-2x8-ib")]
    figure = figures.all_reduce_curves(chosen, bandwidth=bandwidth, both=both)
    above, below = figure.axes
    measured = [line for line in above.lines if line.get_marker() not in ("None", "")]
    for line, each in zip(measured, chosen, strict=True):
        values = [
            bus_bandwidth(size, took, each["ranks"]) if bandwidth else took / 1e3
            for size, took in each["rows"]
        ]
        assert list(line.get_ydata()) == pytest.approx(values)
    ratios = [line for line in below.lines if len(line.get_xdata()) > 2]
    assert len(ratios) == len(chosen) * (1 + both)
    assert min(ratios[0].get_ydata()) == pytest.approx(0.47, abs=0.01)


def test_failures_are_all_counted() -> None:
    record = published("failures")
    (axes,) = figures.failures(record).axes
    assert sum(bar.get_width() for bar in axes.patches) == 419
    assert "148   35%" in texts(axes)
    gpus = sum(count for _, category, count in record["rows"] if category == "GPU")
    assert round(100 * gpus / 419) == 64


def test_a_kernel_lasts_as_long_as_the_others_let_it_wait() -> None:
    (axes,) = figures.kernel_waits(published("fsdp_waiting"), "reduce_scatter", 3264).axes
    last = {bar.get_y(): bar.get_width() for bar in axes.patches}  # of each rank: its transfer
    assert len(last) == 8
    assert len({round(width, 9) for width in last.values()}) == 1
    assert {"12", "72"} <= set(texts(axes))


def test_an_exposed_bucket_costs_what_it_takes_to_send() -> None:
    record = published("bucket_sweep")
    rows = np.array(record["rows"])
    (axes,) = figures.bucket_sweep(record).axes
    assert [list(line.get_ydata()) for line in axes.lines[:3]] == [
        list(rows[:, column]) for column in (3, 2, 1)
    ]
    slope = np.polyfit(rows[:22, 0], rows[:22, 2], 1)[0]
    send = (rows[:, 3] - rows[:, 1]).mean() / (record["parameters"] * 4 / 2**20)
    assert slope == pytest.approx(send, rel=0.07)


def test_what_a_bucket_exposes_is_the_bucket() -> None:
    record = published("bucket_sweep")
    size, ddp, overlapped, at_the_end = np.array(record["rows"]).T
    exchange = at_the_end.mean() - ddp.mean()
    rule = ddp.mean() + exchange * np.minimum(size * MIB / (4 * record["parameters"]), 1)
    assert np.abs(overlapped / rule - 1).max() < 0.04
    assert 0.19 < exchange / ddp.mean() < 0.21, "a fifth of backward"


def test_the_trace_is_stepped_through_bucket_by_bucket() -> None:
    stepper = trace_stepper()
    said = [frame.says for frame in stepper.frames]
    assert [each[each.index("bucket") :][:8] for each in said if "bucket" in each] == [
        f"bucket {number}" for number in range(1, 6)
    ]
    assert "53,120 and 53 numbers" in said[1]
    assert "15 ms after" in said[-2]
    runs = [frame.picture.count("communication held") for frame in stepper.frames]
    assert runs == [0, 0, 0, 1, 1, 1, 1, 1, 0, 0]
    assert stepper.frames[-1].picture.count("communication done") == 5


@pytest.mark.claim("F6")
def test_gloo_is_slower_than_nccl_for_all_but_small_tensors() -> None:
    record = published("gloo_nccl")
    ratio = {kilobytes: gloo / nccl for kilobytes, nccl, gloo in record["rows"]}
    assert all((ratio[size] < 1) == (size <= 32) for size in ratio)
    assert ratio[256] > 100
    assert record["training"]["gloo_minutes"] > 1.5 * record["training"]["nccl_minutes"]


# Machines, eight bits and Muon


def test_machines_are_those_of_the_planner_and_every_fact_has_a_source() -> None:
    record = published("machines")
    machines = {row["machine"]: row for row in named(record["columns"], record["rows"])}
    assert {*machines} == {gpu.name for gpu in ACCELERATORS.values()} - {"A100 SXM"}
    for name, row in machines.items():
        gpu = ACCELERATORS[name.split()[0]]
        assert gpu.flops == 1e12 * row["bf16"]
        assert gpu.memory == row["GB"] * GIB, (
            "which is at most a hundredth more than the driver has"
        )
        assert gpu.memory / GIB == pytest.approx(row["GiB"] or row["GB"], rel=0.01)
        assert gpu.per_node == row["nvlink_domain"]
        assert (gpu.bandwidth, gpu.nvlink) == (1e12 * row["TB_per_s"], 1e9 * row["nvlink_GB_per_s"])
        assert gpu.network == 1e9 * row["network_Gb_per_s"] / 8
    found = {name for row in machines.values() for name in row["sources"]}
    for table in ("types", "speedups", "four_bits", "muon_users"):
        for row in named(record[f"{table}_columns"], record[table]):
            found |= {*row.get("sources", [row.get("source")])}
    used = {*found, "nemo", "moonlight", record["reached"][0][-1]}
    assert used == {*record["sources"]}
    for each in record["sources"].values():
        assert each.keys() == {"link", "name", "licence", "date"}
        assert each["link"].startswith("https://")
    assert {*record["assumed"]} < {*machines}


def test_a_rack_s_gpu_has_its_share_without_sparsity() -> None:
    record = published("machines")
    machines = {row["machine"]: row for row in named(record["columns"], record["rows"])}
    rack, gpu = record["racks"]["GB200 NVL72"], machines["GB200 NVL72"]
    assert gpu["nvlink_domain"] == rack["gpus"] == 72
    for name in ("bf16", "fp8"):
        assert gpu[name] == 1000 * rack[f"{name}_PFLOP_per_s_sparse"] / 2 / 72
    assert gpu["GB"] == round(1000 * rack["TB"] / 72)
    assert gpu["TB_per_s"] == rack["TB_per_s"] / 72
    assert gpu["nvlink_GB_per_s"] == pytest.approx(
        1000 * rack["nvlink_TB_per_s"] / 2 / 72, rel=0.01
    )
    node, gpu = record["racks"]["DGX B200"], machines["B200 SXM"]
    assert gpu["fp8"] == 2 * gpu["bf16"] == 1000 * node["fp8_PFLOP_per_s_sparse"] / 2 / 8
    assert (gpu["GB"], gpu["TB_per_s"]) == (node["GB"] / 8, node["TB_per_s"] / 8)
    assert gpu["nvlink_GB_per_s"] == pytest.approx(1000 * node["nvlink_TB_per_s"] / 2 / 8)


def test_speedups_and_bytes_of_eight_bits_follow_from_their_parts() -> None:
    record = published("machines")
    for row in named(record["speedups_columns"], record["speedups"]):
        if row["bf16"]:
            assert row["speedup"] == pytest.approx(row["fp8"] / row["bf16"], abs=6e-4)
        assert 1 < np.max(row["speedup"]) <= 1.5
    for row in named(record["four_bits_columns"], record["four_bits"]):
        assert row["speedup"] == pytest.approx(row["nvfp4"] / row["mxfp8"], abs=6e-4)
    for row in named(record["types_columns"], record["types"]):
        assert row["bytes_per_parameter"] == sum(row["weights_grads_master_moments"])
    ours, theirs = published("torchtitan")["rows"][1:3]
    assert [ours[-2], theirs[-2]] == record["speedups"][0][4:6]
    for row in named(record["runs_columns"], record["runs"]):
        ranks = row["tensor"] * row["pipeline"] * row["context"]
        assert row["gpus"] % ranks == row["batch"] * ranks % row["gpus"] == 0


def test_muon_sends_at_most_a_quarter_more_than_adamw() -> None:
    muon = published("machines")["muon"]
    parts = (muon["sent_at_most_bytes_per_parameter"], muon["adamw_sent_bytes_per_parameter"])
    most, adamw = (sum(part.values()) for part in parts)
    assert most / adamw == muon["sent_beside_adamw"][1]
