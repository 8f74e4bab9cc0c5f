"""Predictions of `plan` beside training runs on GPUs that others have published."""

from collections.abc import Mapping
from functools import cache
from statistics import median
from typing import Any, NamedTuple

from course.pages.price import PUBLISHED, curve_of
from course.pages.published import named, published
from minidist.formulas import nccl
from minidist.memory.state import AUTOCAST
from minidist.planner.hardware import A100, GIB, H100, Accelerator
from minidist.planner.jobs import MEDIUM
from minidist.planner.planner import Forecast, plan
from minidist.planner.sizes import Sizes

MPT = {  # layers and width, of models whose embeddings have 50,368 rows
    "125m": (12, 768),
    "350m": (24, 1024),
    "760m": (24, 1536),
    "1b": (24, 2048),
    "3b": (32, 2560),
    "7b": (32, 4096),
    "13b": (40, 5120),
    "30b": (48, 7168),
    "70b": (80, 8192),
}
A100_40 = A100._replace(name="A100 SXM 40 GB", memory=40 * GIB, bandwidth=1.555e12)
H100_96 = H100._replace(name="H100 SXM 96 GB", memory=96 * GIB, bandwidth=2.4e12)  # torchtitan's
GPUS = {"h100_80gb": H100, "a100_80gb": A100, "a100_40gb": A100_40}
FSDP = "fsdp"


class Run(NamedTuple):
    """A published run and its prediction: tokens per second and GPU, or GiB of a GPU."""

    name: str
    gpu: str
    gpus: int
    width: int  #: of the model
    batch: int  #: sequences of a micro-batch
    predicted: float
    published: float
    found: Forecast

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published


def throughput(gpus: Mapping[str, Accelerator] = GPUS) -> list[Run]:
    """The 209 bf16 runs of llm-foundry: MPT under FSDP, with a fused loss, as is its default.

    `gpus`: their rates.
    """
    return list(_throughput(*gpus.items()))


@cache  # a page asks several times, and each takes seconds
def _throughput(*rates: tuple[str, Accelerator]) -> list[Run]:
    record, runs, gpus = published("throughput"), [], dict(rates)
    for row in named(record["columns"], record["rows"]):
        if row["precision"] == "amp_fp8":
            continue
        sizes, gpu = Sizes.gpt(*MPT[row["model"]], 50_368, row["sequence"]), gpus[row["gpu"]]
        assert sizes.parameters == row["parameters"]
        found = plan(
            sizes, gpu, row["gpus"], batch=row["micro_batch"],
            checkpointing=float(row["checkpointing"]), fused_loss=True,
        ).forecasts[FSDP]  # fmt: skip
        each = found.tokens_per_second / row["gpus"]
        name = f"{row['model']}, {row['sequence']:,} tokens"
        ran = row["gpus"], sizes.width, row["micro_batch"], each, row["tokens_per_s_per_gpu"]
        runs.append(Run(name, row["gpu"], *ran, found))
    return runs


def one_rate(half_width: float = 900.0) -> float:
    """Median error of the 209 if attention is as fast as matrices, each GPU's share fitted anew.

    `half_width`: the one that then errs least.
    """
    same = {name: gpu._replace(attention=1.0, half_width=half_width) for name, gpu in GPUS.items()}
    runs, kinds = throughput(same), ("h100", "a100")
    fitted = {kind: median(run.ratio for run in runs if run.gpu[:4] == kind) for kind in kinds}
    return median(abs(1 - run.ratio / fitted[run.gpu[:4]]) for run in runs)


def links() -> dict[int, list[float]]:
    """Line rate over published seconds of an all-reduce of 1 to 32 MiB, by how many H100s."""
    return {
        gpus: [
            nccl.seconds("all_reduce", size, gpus // H100.per_node, H100.per_node, H100) / seconds
            for size, seconds in curve_of(gpus)
            if 2**20 <= size <= 2**25
        ]
        for gpus in PUBLISHED
    }


def torchtitan() -> dict[str, list[Run]]:
    """Llama 3.1 8B under FSDP in bf16, with every second product recomputed: speed, and memory."""
    record = published("torchtitan")
    runs: dict[str, list[Run]] = {"tokens": [], "GiB": []}
    for row in named(record["columns"], record["rows"]):
        if row["model"] != "8B" or "Float8" in row["technique"] or "TP" in row["mesh"]:
            continue
        gpus, batch = row["gpus"], row["local_batch"]
        found = plan(MEDIUM, H100_96, gpus, batch=batch, checkpointing=0.5).forecasts[FSDP]
        speed = found.tokens_per_second / gpus, row["tokens_per_s_per_gpu"]
        ran = row["technique"], "h100_96gb", gpus, MEDIUM.width, batch
        runs["tokens"].append(Run(*ran, *speed, found))
        runs["GiB"].append(Run(*ran, found.peak / GIB, row["peak_GiB"], found))
    return runs


def small_gpts() -> list[dict[str, Any]]:
    """A GPT in four sizes on eight A100s; no time where it did not fit."""
    record = published("ddp_fsdp_zero")
    rows = named(record["sizes_columns"], record["sizes_8_gpus"])
    return [row | {"step_ms": row["step_ms"] or float("nan")} for row in rows]


def peaks() -> list[Run]:
    """Peaks of DDP and FSDP on eight A100s, under autocast with every block checkpointed, in GiB.

    0 is published of a run that did not fit.
    """
    runs = []
    for row in small_gpts():
        if row["strategy"] not in ("ddp", FSDP):
            continue
        shape = row["layers"], row["width"], row["vocabulary"], row["sequence"]
        how = {"batch": row["batch_per_rank"], "checkpointing": 1.0, "policy": AUTOCAST}
        found = plan(Sizes.gpt(*shape), A100_40, 8, **how).forecasts[row["strategy"]]
        ran = row["strategy"], "a100_40gb", 8, row["width"], row["batch_per_rank"]
        runs.append(Run(*ran, found.peak / GIB, (row["peak_MiB"] or 0) / 1024, found))
    return runs


def summary() -> dict[str, float]:
    """Errors of the predictions, by the names that the chapter on choosing quotes."""
    runs, titan = throughput(), torchtitan()
    wrong = sorted(abs(1 - run.ratio) for run in runs)
    lost = [_lost(runs, name) for name in {run.name for run in runs if run.gpus == 512}]
    eager, compiled = (
        [run.ratio for run in titan["tokens"] if ("compile" in run.name) == how]
        for how in (False, True)
    )
    reserved = [run.ratio for run in titan["GiB"]]
    small, *others = (abs(1 - run.ratio) for run in peaks() if run.published)
    took = {(row["strategy"], row["width"]): row["step_ms"] / 1e3 for row in small_gpts()}
    slow = next(run for run in peaks() if (run.name, run.width) == ("ddp", 1536))
    return {
        "runs": len(runs),
        "ratio": median(run.ratio for run in runs),
        "error": median(wrong),
        "error_p90": wrong[len(wrong) * 9 // 10],
        "lost_least": min(seen for seen, _ in lost),
        "lost_most": max(seen for seen, _ in lost),
        "many_least": min((1 - told) / (1 - seen) for seen, told in lost),
        "many_most": max((1 - told) / (1 - seen) for seen, told in lost),
        "eager": sum(eager) / len(eager),
        "compiled": sum(compiled) / len(compiled),
        "reserved_least": min(reserved),
        "reserved_most": max(reserved),
        "peak_small": small,
        "peak_others": max(others),
        "starved": took["ddp", 1536] / slow.found.overlapped,
        "links": median(1 / ratio for ratios in links().values() for ratio in ratios),
        "links_most": 1 / min(links()[64]),
    }


def _lost(runs: list[Run], name: str) -> tuple[float, float]:
    """Share of a GPU's speed lost from 128 H100s to 512, as published and as predicted."""
    same = {run.gpus: run for run in runs if (run.gpu, run.name) == ("h100_80gb", name)}
    few, many = same[128], same[512]
    return 1 - many.published / few.published, 1 - many.predicted / few.predicted
