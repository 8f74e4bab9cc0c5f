"""Promises that the course makes of its records: sentences, each with whether it holds.

`python -m benchmarks NAME` names those that its record breaks; a test asks the records that are
kept. A machine that is busy while it measures breaks the ones about time.
"""

from collections.abc import Callable, Iterator
from itertools import product
from math import isclose
from statistics import geometric_mean, median

from benchmarks.harness.bus_bandwidth import FACTORS, bus_bandwidth
from benchmarks.harness.record import Row

MIB = 1 << 20
DDP = ["torch", "alone", "minidist", "overlapped", "bucketed", "flat", "naive", "minidist, native"]
ZERO = ["torch", "torch, views", "ddp", "stage 1", "stage 1, native", "stage 1, local"]
ZERO += ["stage 2", "stage 2, native", "from_scratch, stage 1", "from_scratch, stage 2"]
FSDP = ["torch", "torch, kept", "ddp", "fsdp", "fsdp, kept", "fsdp, native", "from_scratch"]
WAYS = {"ddp": DDP, "zero": ZERO, "fsdp": FSDP}

Promises = Iterator[tuple[str, bool]]


def broken(name: str, rows: list[Row]) -> list[str]:
    """The promises of a record that its rows do not keep."""
    try:
        promises = [*times(rows), *OF_RECORDS.get(name, lambda rows: iter(()))(rows)]
    except (KeyError, ValueError) as missing:
        return [f"all rows and ways are there: {missing!r}"]
    return [sentence for sentence, holds in promises if not holds]


def rows_of(rows: list[Row], what: str) -> list[Row]:
    return [row for row in rows if row["what"] == what]


def by_way(rows: list[Row], what: str, ranks: int) -> dict[str, Row]:
    return {row["way"]: row for row in rows_of(rows, what) if row["ranks"] == ranks}


def times(rows: list[Row]) -> Promises:
    for row in rows:
        for key, value in row.items():
            if key.endswith("ms") and isinstance(value, list) and len(value) == 3:
                low, middle, high = value
                yield f"quartiles in order: {key} of {row}", 0 < low <= middle <= high


def launch(rows: list[Row]) -> Promises:
    (row,) = (row for row in rows if row["what"].startswith("later") and row["ranks"] == 4)
    yield "a later launch of four ranks is timed 15 times", row["runs"] >= 15
    yield "it takes at most a fifth of a second", 0 < row["seconds"] <= 0.2


def ring(rows: list[Row]) -> Promises:
    for ranks in (2, 4, 8):
        some = [row for row in rows if row["ranks"] == ranks and row["bytes"] >= MIB]
        sizes = [row["bytes"] for row in some]
        yield f"{ranks} ranks: 1 to 64 MiB", sizes == [MIB, 4 * MIB, 16 * MIB, 64 * MIB]
        ratios = [row["ratio"] for row in some]
        yield f"{ranks} ranks: within a tenth of the backend", geometric_mean(ratios) <= 1.1
        yield f"{ranks} ranks: no size a fifth slower", max(ratios) <= 1.2
        for row in some:
            pairs = list(zip(row["ring_ms"], row["native_ms"], strict=True))
            yield f"5 launches of 15 rounds: {row}", len(pairs) >= 5 and row["rounds"] >= 15
            ratio = median(a / b for a, b in pairs)
            yield f"the median of ratios: {row}", isclose(row["ratio"], ratio, abs_tol=2e-3)


def collectives(rows: list[Row]) -> Promises:
    cells = list(product((2, 4, 8), [4**k * 1024 for k in range(1, 9)]))
    for name in ("all_reduce", "reduce_scatter", "all_gather"):
        some = rows_of(rows, name)
        ratios = [row["ratio"] for row in some]
        yield f"{name}: every size", [(row["ranks"], row["bytes"]) for row in some] == cells
        yield f"{name}: never slower than the backend", max(ratios) <= 1.1
        yield f"{name}: twice as fast on average", geometric_mean(ratios) <= 0.5
        for row in some:
            ratio = row["auto_ms"][1] / row["native_ms"][1]
            yield f"a ratio of medians: {row}", isclose(row["ratio"], ratio, rel_tol=0.05)


def steps(name: str, rows: list[Row]) -> Promises:
    for ranks in (2, 4):
        found = by_way(rows, "step", ranks)
        yield f"{ranks} ranks: a step of every way", list(found) == WAYS[name]
        for row in found.values():
            ratio = row["ms"][1] / found["torch"]["ms"][1]
            yield f"15 rounds: {row}", row["rounds"] >= 15
            close = isclose(row["ratio"], ratio, rel_tol=2e-3, abs_tol=2e-3)
            yield f"beside torch's: {row}", close


def as_fast(ranks: int, found: dict[str, Row], pairs: list[tuple[str, float, str]]) -> Promises:
    for way, times, other in pairs:
        fast = found[way]["ratio"] <= times * found[other]["ratio"]
        yield f"{ranks} ranks: a step of {way} takes at most {times} times that of {other}", fast


def held(ranks: int, found: dict[str, Row], pairs: dict[str, str]) -> Promises:
    """What ways hold beside what is predicted of them, and beside what torch's hold."""
    for way, row in found.items():
        case = f"{way}, {ranks} ranks"
        yield f"{case}: it holds less than its peak", 0 < row["held_bytes"] < row["peak_bytes"]
        if way != "stage 1, local" and not way.startswith("torch"):
            close = isclose(row["held_bytes"], row["predicted_held_bytes"], rel_tol=0.01)
            yield f"{case}: it holds what is predicted", close
            # Above: AdamW's temporary tensors. Below: what could be in flight at once was not.
            share = row["peak_bytes"] / row["predicted_peak_bytes"]
            yield f"{case}: its peak is near the predicted one", 0.85 < share < 1.2
    for ours, theirs in pairs.items():
        one, other = found[ours], found[theirs]
        no_more = one["held_bytes"] <= 1.01 * other["held_bytes"]
        no_more &= one["peak_bytes"] <= 1.05 * other["peak_bytes"]
        yield f"{ranks} ranks: {ours} takes no more memory than {theirs}", no_more


def ddp(rows: list[Row]) -> Promises:
    yield from steps("ddp", rows)
    for ranks in (2, 4):
        pairs = [("minidist", 1.05, "torch"), ("overlapped", 1.3, "minidist")]
        yield from as_fast(ranks, by_way(rows, "step", ranks), pairs)
        share = by_way(rows, "hidden", ranks)["minidist"]["share"]
        yield f"{ranks} ranks: some communication is hidden", share > 0.1
    for way in ("minidist", "torch"):
        some = [row for row in rows_of(rows, "memory") if row["way"] == way]
        plain, views = sorted(some, key=lambda row: row["views"])
        yield f"{way}: with views and without", (plain["views"], views["views"]) == (False, True)
        size = plain["gradient_bytes"]
        for row, copies in ((plain, 2), (views, 1)):
            close = isclose(row["held_bytes"], copies * size, rel_tol=0.01)
            yield f"{way}: it holds {copies} times the gradients", close
        saved = plain["peak_bytes"] - views["peak_bytes"]
        yield f"{way}: views save a copy of the gradients", saved > 0.7 * size


def zero(rows: list[Row]) -> Promises:
    yield from steps("zero", rows)
    for ranks in (2, 4):
        found, memory = by_way(rows, "step", ranks), by_way(rows, "memory", ranks)
        torchs = min("torch", "torch, views", key=lambda way: found[way]["ratio"])
        pairs = [("stage 1", 1.05, torchs), ("from_scratch, stage 1", 1.3, "stage 1, local")]
        yield from as_fast(ranks, found, [*pairs, ("from_scratch, stage 2", 1.3, "stage 2")])
        yield from held(ranks, memory, {"stage 1": "torch"})
        slices = {memory[way]["held_bytes"] for way in ("stage 1, local", "stage 2")}
        yield f"{ranks} ranks: both stages hold the same slices", len(slices) == 1


def fsdp(rows: list[Row]) -> Promises:
    yield from steps("fsdp", rows)
    for ranks in (2, 4):
        pairs = [("fsdp", 1.0, "torch"), ("fsdp, kept", 1.0, "torch, kept")]
        pairs.append(("from_scratch", 1.3, "fsdp"))
        yield from as_fast(ranks, by_way(rows, "step", ranks), pairs)
        theirs = {"fsdp": "torch", "fsdp, kept": "torch, kept"}
        yield from held(ranks, by_way(rows, "memory", ranks), theirs)
    sizes = [(row["width"], row["way"]) for row in rows_of(rows, "size")]
    yield "models of four sizes", sizes == [*product((32, 64, 128, 256), ("ddp", "fsdp"))]


def limit(rows: list[Row]) -> Promises:
    some, stages = rows_of(rows, "largest model"), ("ddp", "zero1", "zero2", "fsdp")
    layers = {(row["strategy"], row["checkpointed"]): row["layers"] for row in some}
    for again in (False, True):
        depths = [layers[strategy, again] for strategy in stages]
        yield "each stage fits a deeper model than the one before", depths == sorted({*depths})
    for each in stages:
        yield f"{each}: checkpoints fit a deeper one", layers[each, True] > layers[each, False]
    for row in some:
        most = row["predicted_layers"]
        yield f"nearly as deep as predicted: {row}", 0.75 * most <= row["layers"] <= most + 1


def local_sgd(rows: list[Row]) -> Promises:
    curves = rows_of(rows, "curve")
    plain = {row["every"]: row for row in curves if row["way"] in ("DDP", "averages")}
    yield "rounds of 1, 10 and 100 steps", [*plain] == [1, 10, 100]
    for every, row in plain.items():
        yield f"{every}: a loss each 100 steps", row["steps"] == list(range(0, 1001, 100))
        sent = 2 * 3 / 4 * 4 * row["parameters"] * 1000 / every
        yield f"{every}: bytes of a ring", isclose(row["sent_bytes"][-1], sent, rel_tol=1e-3)
        yield f"{every}: it learns", row["loss"][0] > 4 > row["loss"][-1]
    ends = [row["loss"][-1] for row in plain.values()]
    yield "the longer the rounds, the less of a sample is learned", ends == sorted(ends)
    diloco = [(row["every"], row["outer"]) for row in curves if row["way"] == "DiLoCo"]
    outer = [(n, [0.7, m]) for n in (10, 100) for m in (0.5, 0.9)]
    yield "DiLoCo with two momenta", sorted(diloco) == outer


def plan(rows: list[Row]) -> Promises:
    plans = rows_of(rows, "plan")
    ways, links = ["single", "ddp", "zero1", "zero2", "fsdp"], ("own", "emulated")
    two = [(row["width"], row["link"], row["way"]) for row in plans if row["ranks"] == 2]
    yield "2 ranks: three widths", two == list(product((64, 128, 256), links, ways))
    four = [(row["link"], row["way"]) for row in plans if row["ranks"] == 4]
    yield "4 ranks: hybrid, too", four == list(product(links, [*ways, "hsdp"]))
    for row in plans:
        yield f"the bytes exactly: {row}", row["sent_bytes"] == row["predicted_sent_bytes"]
        yield f"the memory nearly: {row}", 0.85 < row["peak_bytes_factor"] < 1.2
        factor = row["predicted_ms"] / row["ms"]
        yield f"the time's factor: {row}", isclose(row["ms_factor"], factor, rel_tol=2e-3)


def gpu(rows: list[Row]) -> Promises:
    """Of every setup alike: what is right, and numbers that follow from others of the row."""
    yield "no section failed", rows[-1]["failed"] == []
    steps = [row for row in rows if row.get("what") == "step" and "ms" in row]
    took = {
        (row["section"], row["setup"], row["precision"], row["way"]): row["ms"][1] for row in steps
    }
    for row in steps:
        other = took[row["section"], row["setup"], row["precision"], row["against"]]
        yield f"beside torch's: {row}", isclose(row["ratio"], row["ms"][1] / other, rel_tol=2e-3)
    for row in rows:
        right = row["right"] if row.get("what") == "losses" else row.get("right", True)
        yield f"right: {row}", right and not row.get("wrong")
        if "ms_factor" in row:
            factor = row["predicted_ms"] / row["ms"][1]
            yield f"the time's factor: {row}", isclose(row["ms_factor"], factor, rel_tol=2e-3)
        if row["section"] == "collectives" and row["what"] in FACTORS and "ratio" in row:
            yield from of_collective(row)
        if "predicted_held_bytes" in row:  # a thread may still hold the last message's tensors
            share = row["held_bytes"] / row["predicted_held_bytes"]
            yield f"near what is predicted: {row}", 0.95 < share < 1.4
        if row.get("what") == "limit":
            kept = row["peak"] <= row["limit"]
            fits = {bool(row[key]) for key in ("batch", "peak", "tokens_per_second")}
            yield f"within the limit: {row}", kept and len(fits) == 1


def of_collective(row: Row) -> Promises:
    auto, native = (row[f"{way}_ms"][1] for way in ("auto", "native"))
    yield f"a ratio of medians: {row}", isclose(row["ratio"], auto / native, rel_tol=2e-3)
    for way, took in (("auto", auto), ("native", native)):
        rate = bus_bandwidth(row["what"], row["bytes"], row["ranks"], took / 1e3) / 1e9
        close = isclose(row[f"{way}_bus_gb_per_s"], rate, rel_tol=2e-3)
        yield f"the bus bandwidth of {way}: {row}", close


OF_RECORDS: dict[str, Callable[[list[Row]], Promises]] = {
    each.__name__: each
    for each in (launch, ring, collectives, ddp, zero, fsdp, limit, local_sgd, plan, gpu)
}
