"""The worked problem of long sequences: 131,072 tokens of the medium model on eight nodes."""

from typing import Any

from course.pages.price import ask
from minidist.formulas.compute import rate
from minidist.planner.hardware import H100
from minidist.planner.jobs import MEDIUM

TOKENS, RANKS = 131_072, 8
HEAD = "cut", "MB per layer", "in a node, ms", "between nodes, ms"


def cuts() -> list[list[Any]]:
    """What each cut sends per layer, and how long that takes where."""
    tokens, width = TOKENS // RANKS, MEDIUM.width  # of a tensor group
    sent = {"width": 16 * tokens * width * 7 / 8, "sequence": 12 * tokens * width * 7 / RANKS / 4}
    times = {"width": 8, "sequence": 3}  # collectives, or as many bytes
    full = {"width": 2 * tokens * width, "sequence": 4 * TOKENS * width / 4 / RANKS}  # one's result
    rows = []
    for cut, size in full.items():
        inside = ask("all_gather", "medium", gpus=8, nbytes=size)
        # eight at a time
        between = ask("all_gather", "medium", gpus=64, nbytes=8 * size, over="nodes")
        took = (1e3 * times[cut] * each for each in (inside, between))
        rows.append([cut, sent[cut] / 1e6, *took])
    return rows


def memory() -> tuple[float, float]:
    """Bytes of what layers keep of the sequence, and of its logits, on one GPU."""
    job: dict[str, Any] = {"gpus": 64, "tokens": TOKENS, "sequence": TOKENS}
    logits = 10 * TOKENS * 128_256  # bf16; in fp32 log-probabilities and their gradient
    return ask("activations", "medium", **job) - logits, logits


def layer_ms() -> tuple[float, float]:
    """Milliseconds of a layer's matrices, and of its scores, cut 64 ways."""
    job: dict[str, Any] = {"gpus": 64, "tokens": TOKENS, "sequence": TOKENS}
    matrices, scores = (ask(what, "medium", **job) for what in ("matrices", "attention"))
    return 1e3 * matrices / 64 / MEDIUM.units, 1e3 * scores / 64 / MEDIUM.units


def numbers() -> dict[str, float]:
    """The page's numbers by name: GB, ms, TFLOP/s, percent of a layer's compute, tokens."""
    (_, _, width_in, width_out), _ = cuts()
    layers, logits = (each / 1e9 for each in memory())
    matrices, scores = layer_ms()
    of_matrices = rate(H100, MEDIUM.width) / 1e12
    percent = 100 / (matrices + scores)
    return {
        "one_layers": layers,
        "one_logits": logits,
        "cut_layers": layers / 64,
        "cut_logits": logits / 64,
        "matrices_ms": matrices,
        "scores_ms": scores,
        "matrices_rate": of_matrices,
        "scores_rate": of_matrices * H100.attention,
        "tensor_share": percent * width_in,
        "tensor_out_share": percent * width_out,
        "ring_tokens": 2 * H100.flops / H100.network / 4,  # that hide it
    }
