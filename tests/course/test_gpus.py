"""What the page "Seen on GPUs" says of the records that it shows."""

from course.pages.price import ask
from course.pages.published import curve, published
from course.pages.recorded import recorded
from course.timing.fits import through_ends

BUCKET = 96 * 2**20


def test_all_reduces_of_ddp_end_before_backward_does() -> None:
    steps = published("ddp_trace")["steps"]
    assert all(step["last_all_reduce_end_ms"] <= step["backward_end_ms"] for step in steps)


def test_rank_4_waits_least_and_sends_first() -> None:
    rows = published("fsdp_waiting")["kernels"]
    reduce = {r[0]: r for r in rows if r[1] == "reduce_scatter" and round(r[2]) == 3264}
    assert reduce[4][4] == min(row[4] for row in reduce.values())
    assert reduce[4][6] < min(row[5] for rank, row in reduce.items() if rank != 4)


def test_messages_are_of_blocks_and_of_the_root_in_two_steps() -> None:
    fsdp = published("fsdp_waiting")
    width, hidden, keys = (fsdp[key] for key in ("width", "intermediate", "kv_width"))
    block = 2 * width * (width + keys) + 3 * width * hidden + 2 * width
    root = 2 * fsdp["vocabulary"] * width + width
    sizes = {round(r[2] * 2**20 / (2 if r[1] == "bf16" else 4)) for r in fsdp["transfers"]}
    assert fsdp["steps"] == 2
    assert sizes == {block, root}
    calls = {(row[0], row[3]) for row in fsdp["transfers"]}
    of_blocks = {("all_gather", 2 * (80 + 79)), ("reduce_scatter", 2 * 80)}
    assert calls == of_blocks | {("all_gather", 2), ("reduce_scatter", 2)}


def test_torch_copies_to_the_host_for_each_gather_and_reduction_and_computes_less_often() -> None:
    rows = [row for row in recorded("gpu_suites")["rows"] if row.get("what") == "trace"]
    busy = {}
    for row in rows:
        begin, end = row["host_ms"]["forward"]
        busy[row["way"]] = sum(b - a for a, b in row["gpu_ms"]["forward"]) / (end - begin)
    assert len(rows[0]["gpu_ms"]["to host"]) == 7 + 6 + 7
    assert rows[0]["layers"] == 6
    assert busy["fsdp"] > 1.4 * busy["torch"]


def test_a_line_is_off_by_two_fifths_at_a_bucket() -> None:
    line = through_ends(curve("h100-2x8-ib")["rows"])
    seen = ask("all_reduce", gpus=16, nbytes=BUCKET, tariff="published")
    assert 1.35 < seen / (line(BUCKET) / 1e6) < 1.5
