"""The recorded benchmarks are complete, and show what the course promises.

A record is data, so nothing here depends on the clock: `make bench` makes it, on a quiet machine.
"""

import json
import re
from collections import Counter
from copy import deepcopy
from datetime import date
from pathlib import Path

import pytest

from benchmarks.__main__ import CASES
from benchmarks.cases import experts, small_job
from benchmarks.promises import OF_RECORDS, broken
from course.pages.recorded import RESULTS
from minidist.planner import jobs

ROOT = Path(__file__).parents[2]
RECORDS = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}


def test_the_page_names_every_case_that_can_be_recorded() -> None:
    page = (ROOT / "book" / "results.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [*CASES]
    assert (
        {name for name in RECORDS if not name.startswith("gpu")}
        == {*CASES}
        == {*OF_RECORDS} - {"gpu"}
    )


def test_a_record_says_how_where_and_when() -> None:
    for name, found in RECORDS.items():
        assert re.match(r"python -m benchmarks\b", found["command"]), name
        assert all(word in found["machine"] for word in ("Python", "torch")), name
        assert date.fromisoformat(found["date"]) >= date(2026, 1, 1), name
        assert found["rows"], name
        assert all(isinstance(row, dict) and row for row in found["rows"]), name


def test_records_show_what_the_course_promises() -> None:
    found = [f"{name}: {each}" for name in RECORDS for each in broken(name, RECORDS[name]["rows"])]
    assert not found, "\n".join(found)


def test_a_broken_promise_is_named() -> None:
    rows = deepcopy(RECORDS["ring"]["rows"])
    (row,) = (row for row in rows if (row["ranks"], row["bytes"]) == (8, 1 << 26))
    row["ratio"] = 1.3
    assert broken("ring", rows) == [
        "8 ranks: no size a fifth slower",
        f"the median of ratios: {row}",
    ]
    left = [row for row in rows if row["ranks"] < 8 or row["bytes"] < 1 << 26]
    assert broken("ring", left) == ["8 ranks: 1 to 64 MiB"]
    (missing,) = broken("limit", RECORDS["limit"]["rows"][1:])
    assert missing.startswith("all rows and ways are there: KeyError")
    timed = {"way": "a", "ms": [1.0, 3.0, 2.0]}
    assert broken("gpu_rates", [timed]) == [f"quartiles in order: ms of {timed}"]


def test_records_of_gpus_say_what_they_lack() -> None:
    """Each row of a layer or a product is timed, or says that memory or time was missing."""
    lacking = {}
    for name in ("gpu_rates", "gpu_rates_h200", "gpu_grid"):
        rows = [row for row in RECORDS[name]["rows"] if row["section"] in ("rates", "grid")]
        assert all(("tflops" in r) + ("out_of_memory" in r) + ("no_time" in r) == 1 for r in rows)
        lacking[name] = sum("tflops" not in row for row in rows)
    assert lacking == {"gpu_rates": 6, "gpu_rates_h200": 11, "gpu_grid": 0}


def test_a_layer_s_record_counts_its_operations_once() -> None:
    rows = [row for row in RECORDS["gpu_grid"]["rows"] if row.get("what") == "layer"]
    for row in rows:
        forward, backward = (row["ms"][part][1] for part in ("forward", "backward"))
        done = row["forward_tflops"] * forward * (3 + row["checkpointed"])
        assert row["tflops"] == pytest.approx(done / (forward + backward), rel=0.002)
        assert 0 < row["peak_bytes"] < 80 << 30


def test_experts_recomputation_and_casts_are_recorded_without_a_gap() -> None:
    rows = [row for row in RECORDS["gpu_experts"]["rows"] if row["section"] == "experts"]
    assert all("ms" in row and "refused" not in row for row in rows)
    counts = Counter(row["what"] for row in rows)
    lengths = sum(len(case.lengths) for case in experts.plans() if isinstance(case, experts.Layer))
    assert counts == {"group": 3 * 4 * 4 * 2 + 3 * 2 * 4, "layer": lengths, "matrix": 4}
    kept = {
        row["recomputed"]: row["kept_bytes"]
        for row in rows
        if row["what"] == "layer" and row["tokens"] == 8192 and row["sequences"] == 1
        if row["compiled"]
    }
    assert sorted(kept, key=kept.__getitem__) == ["full", "every other", "selective", "none"]
    assert kept["full"] == 2 * 8192 * 4096, "the output in bf16"
    for row in rows:
        if row["what"] == "matrix":  # what casts cost, a product's gain can lose
            both = row["ms"]["fp8, products"][1] + row["ms"]["fp8, casts"][1]
            assert row["ms"]["fp8"][1] == pytest.approx(both, rel=0.05)
            assert row["times_as_fast"]["fp8"] < 1.2 < 1.6 < row["times_as_fast"]["fp8, products"]


def test_pages_say_on_which_gpus_the_record_was_made() -> None:
    (gpu,) = next(row["gpus"] for row in RECORDS["gpu"]["rows"] if "gpus" in row)
    assert gpu["name"] == "NVIDIA H200"
    for page in ("README.md", "book/results.md"):
        assert "n one H200" in (said := (ROOT / page).read_text()) or "on an H200" in said


def test_the_recorded_gpu_held_what_the_plan_says() -> None:
    rows = RECORDS["gpu"]["rows"]
    runs = [row for row in rows if row["section"] == "small job" and row["what"] == "memory"]
    assert [(row["way"], row["tokens"], row["checkpointed"]) for row in runs] == [
        (run.way, run.tokens, run.checkpointed) for run in small_job.MEMORY
    ]
    for made, row in zip(small_job.MEMORY, runs, strict=True):
        assert row["peak_bytes"] == pytest.approx(small_job.forecast(made).peak, rel=0.0025)
    assert rows[-1]["failed"] == []
    assert small_job.SMALL.sizes(jobs.SMALL.tokens) == jobs.SMALL
