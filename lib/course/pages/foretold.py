"""What `plan` foretells of training runs on GPUs that others have published."""

from typing import NamedTuple

from course.pages.published import published
from minidist.memory.state import AUTOCAST
from minidist.planner.hardware import A100, GIB, H100
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
    """A published run, and what `plan` says of it: tokens per second and GPU, or GiB of a GPU."""

    name: str
    gpu: str
    gpus: int
    batch: int  #: sequences of a micro-batch
    predicted: float
    published: float
    found: Forecast

    @property
    def ratio(self) -> float:
        """Predicted over published."""
        return self.predicted / self.published


def throughput() -> list[Run]:
    """The 209 bf16 runs of llm-foundry: MPT under FSDP, with a fused loss, as is its default."""
    record, runs = published("throughput"), []
    for values in record["rows"]:
        row = dict(zip(record["columns"], values, strict=True))
        if row["precision"] == "amp_fp8":
            continue
        sizes, gpu = Sizes.gpt(*MPT[row["model"]], 50_368, row["sequence"]), GPUS[row["gpu"]]
        assert sizes.parameters == row["parameters"]
        found = plan(
            sizes, gpu, row["gpus"], batch=row["micro_batch"],
            checkpointing=float(row["checkpointing"]), fused_loss=True,
        ).forecasts[FSDP]  # fmt: skip
        each = found.tokens_per_second / row["gpus"]
        name = f"{row['model']}, {row['sequence']:,} tokens"
        ran = row["gpus"], row["micro_batch"], each, row["tokens_per_s_per_gpu"]
        runs.append(Run(name, row["gpu"], *ran, found))
    return runs


def torchtitan() -> dict[str, list[Run]]:
    """Llama 3.1 8B under FSDP in bf16, with every second product recomputed: speed, and memory."""
    record = published("torchtitan")
    runs: dict[str, list[Run]] = {"tokens": [], "GiB": []}
    for values in record["rows"]:
        row = dict(zip(record["columns"], values, strict=True))
        if row["model"] != "8B" or "Float8" in row["technique"] or "TP" in row["mesh"]:
            continue
        gpus, batch = row["gpus"], row["local_batch"]
        found = plan(MEDIUM, H100_96, gpus, batch=batch, checkpointing=0.5).forecasts[FSDP]
        speed = found.tokens_per_second / gpus, row["tokens_per_s_per_gpu"]
        ran = row["technique"], "h100_96gb", gpus, batch
        runs["tokens"].append(Run(*ran, *speed, found))
        runs["GiB"].append(Run(*ran, found.peak / GIB, row["peak_GiB"], found))
    return runs


def peaks() -> list[Run]:
    """Peaks of DDP and FSDP on eight A100s, under autocast with every block checkpointed, in GiB.

    0 is published of a run that did not fit.
    """
    record, runs = published("ddp_fsdp_zero"), []
    for values in record["sizes_8_gpus"]:
        row = dict(zip(record["sizes_columns"], values, strict=True))
        if row["strategy"] not in ("ddp", FSDP):
            continue
        shape = row["layers"], row["width"], row["vocabulary"], row["sequence"]
        how = {"batch": row["batch_per_rank"], "checkpointing": 1.0, "policy": AUTOCAST}
        found = plan(Sizes.gpt(*shape), A100_40, 8, **how).forecasts[row["strategy"]]
        ran = row["strategy"], "a100_40gb", 8, row["batch_per_rank"]
        runs.append(Run(*ran, found.peak / GIB, (row["peak_MiB"] or 0) / 1024, found))
    return runs
