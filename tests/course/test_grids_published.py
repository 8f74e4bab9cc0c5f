"""Training runs that others have published with their grids: each row's arithmetic, each source."""

from typing import Any

import pytest

from course.pages.published import PUBLISHED, named, parts, published

FILES = sorted(path.stem for path in PUBLISHED.glob("grids_*.json"))
DATA = {None, "ddp", "zero1", "fsdp", "fsdp_kept", "hsdp"}
SORTED = ("model", "gpu", "gpus", "sequence", "batch", "tensor", "pipeline")


def runs(name: str) -> list[dict[str, Any]]:
    """The rows of a file, each as column → value."""
    record = published(name)
    return named(record["columns"], record["rows"])


def flops(model: dict[str, Any], sequence: int) -> tuple[float, float]:
    """Of a token, forward and backward: in its matrix products, and in causal attention."""
    width, layers, mixture = model["width"], model["layers"], "experts" in model
    head = model.get("head", width // model["heads"])
    queries, kept = model["heads"] * head, model["kv_heads"] * head
    dense = model["dense_layers"] if mixture else layers
    used = dense * model["hidden"]
    if mixture:
        used += (layers - dense) * model["expert_hidden"] * (model["active"] + model["shared"])
    matrices = layers * 2 * (queries + kept) + (3 if model["gated"] else 2) * used
    parameters = model.get("active_parameters", (matrices + model["vocabulary"]) * width)
    return 6 * parameters, 6 * layers * queries * sequence


@pytest.mark.parametrize("name", FILES)
def test_a_source_says_where_it_is_and_on_what_it_ran(name: str) -> None:
    assert {row["source"] for row in runs(name)} == {*published(name)["sources"]}
    assert {row["model"] for row in runs(name)} == {*published(name)["models"]}
    for source in parts(published(name)):
        assert {"name", "link", "licence", "date", "machine", "software"} <= {*source}
        assert all(source.values())


@pytest.mark.parametrize("name", FILES)
def test_a_grid_divides_the_gpus_and_the_batch(name: str) -> None:
    for row in runs(name):
        assert row["data"] in DATA, row
        ranks = (row["tensor"] or 1) * (row["context"] or 1) * (row["pipeline"] or 1)
        assert row["gpus"] % ranks == 0, row
        if row["batch"] and row["tensor"] and row["pipeline"]:
            assert row["batch"] % (row["gpus"] // ranks * (row["micro_batch"] or 1)) == 0, row
        assert row["gpus"] % ((row["expert"] or 1) * (row["pipeline"] or 1)) == 0, row


@pytest.mark.parametrize("name", FILES)
def test_seconds_tokens_and_flops_agree(name: str) -> None:
    record = published(name)
    for row in runs(name):
        tokens = row["tokens_per_s_per_gpu"]
        if tokens and row["seconds"] and row["batch"]:
            found = row["batch"] * row["sequence"] / row["seconds"] / row["gpus"]
            assert tokens == pytest.approx(found, rel=0.02), row
        otherwise = [row["source"], row["model"]] in record.get("counted_otherwise", [])
        if tokens and row["tflops"] and not otherwise and "counted_otherwise" in record:
            products, causal = flops(record["models"][row["model"]], row["sequence"])
            passes = 4 if record["sources"][row["source"]].get("recomputed") else 3
            found = row["tflops"] * 1e12 / tokens * 3 / passes
            assert 0.8 * (products + causal) < found < 1.2 * (products + 2 * causal), row


@pytest.mark.parametrize("name", FILES)
def test_a_sweep_compares_alike_and_every_third_row_of_a_source_is_set_aside(name: str) -> None:
    rows = runs(name)
    for sweep in {row["sweep"] for row in rows} - {""}:
        found = [row for row in rows if row["sweep"] == sweep]
        assert len({(row["model"], row["gpus"], row["batch"]) for row in found}) == 1, sweep
        assert sum(row["best"] for row in found) <= 1 < len(found), sweep
    rows.sort(key=lambda row: [(row[each] is not None, row[each] or 0) for each in SORTED])
    for source in published(name)["sources"]:
        asides = [row["aside"] for row in rows if row["source"] == source]
        assert asides == [number % 3 == 1 for number in range(len(asides))], source
