"""The cheat sheet: how many tokens hide the small job's communication, by three tariffs."""

from course.pages.price import ask, step_of
from minidist.formulas.compute import rate
from minidist.formulas.memory import bucket_bytes
from minidist.formulas.step import tokens_to_hide
from minidist.planner.hardware import H100
from minidist.planner.jobs import SMALL

GPUS = 64


def tokens() -> dict[str, str]:
    """Pass → tokens per GPU by bytes alone, at line rate and as published, on 64 H100s."""
    buckets = sorted(bucket_bytes(step_of("small", GPUS, 4096)))
    bucket, unit = buckets[len(buckets) // 2] / 4, SMALL.largest_unit  # parameters of a piece
    passes: dict[str, tuple[int, int, float, dict[str, float]]] = {  # W, K, piece, its bytes
        "ddp": (8, 4, bucket, {"all_reduce": 4 * bucket}),
        "forward": (2, 2, unit, {"all_gather": 2 * unit}),
        "backward": (6, 4, unit, {"all_gather": 2 * unit, "reduce_scatter": 4 * unit}),
    }
    speed, found = rate(H100, SMALL.width), {}
    for name, (w, k, piece, sent) in passes.items():
        said = [tokens_to_hide(w, k, speed, H100.node_network, 0, 1)]
        for tariff in ("line rate", "published"):
            takes = (ask(each, gpus=GPUS, nbytes=n, tariff=tariff) for each, n in sent.items())
            said.append(tokens_to_hide(0, k, speed, 1, sum(takes), piece))
        found[f"cheat_{name}"] = " · ".join(f"{each:,.0f}" for each in said)
    return found
