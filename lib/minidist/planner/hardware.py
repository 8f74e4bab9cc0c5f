"""Rates of common hardware, one statement for every worked problem; sources on the page "Rates"."""

from __future__ import annotations

from minidist.formulas import compute
from minidist.formulas.inputs import Gpu

GIB = 2**30  # memory is sold in these: "80 GB" are 80 GiB, or 85.9e9 bytes

# Seconds that a message of any size takes when schedules are compared: round figures. What NCCL's
# collectives take is in `minidist.formulas.nccl`.
NVLINK_LATENCY = 3e-6
NETWORK_LATENCY = 10e-6

# Of large matrices a GPU reaches a part of its peak, `utilization`, of narrow ones less, half of
# that at HALF_WIDTH; causal attention a part of it. Fitted to published training steps, for the
# H200 to our own: see the page "Rates". On a B200 and a GB200 nearly all of these are in fp8: from
# 9 and 19 runs of dense models `utilization` is fitted, with what `FASTER` says, and no more.
HALF_WIDTH = 560

# How many times as fast as in bf16 the blocks' matrices are, with their casts; attention, head and
# router stay in bf16. "fp8", one scale per tensor: fitted to pairs of published runs on H100s.
# "mxfp8", one per 32 numbers: to pairs with fp8 on B200s and GB200s. Both `grids_megatron.json`.
FASTER = {"bf16": 1.0, "fp8": 1.5, "mxfp8": 1.4}


class Accelerator(Gpu):
    """A GPU and the links that it has to others, at their peak; see `Gpu` for its fields."""

    def rate(self, width: int) -> float:
        """FLOPs per second in a model of this width, while nothing waits for the network."""
        return compute.rate(self, width)

    @property
    def node_network(self) -> float:
        """Bytes per second that a node sends, with the network cards of all its GPUs."""
        return self.network * self.per_node


H100 = Accelerator(
    "H100 SXM", 989e12, 80 * GIB, 3.35e12, 450e9, 50e9, "hopper", 8, 0.56, HALF_WIDTH, 0.35
)
A100 = H100._replace(
    name="A100 SXM", flops=312e12, bandwidth=2.039e12, nvlink=300e9, network=25e9,
    generation="ampere", utilization=0.73, attention=0.54,
)  # fmt: skip
H200 = H100._replace(
    name="H200 SXM", memory=141 * GIB, bandwidth=4.8e12, utilization=0.67, half_width=1000,
    attention=1.0,
)  # fmt: skip
H800 = H100._replace(name="H800 SXM", nvlink=200e9)  # of which DeepSeek reached 160
B200 = H100._replace(
    name="B200 SXM", flops=2250e12, memory=180 * GIB, bandwidth=8e12, nvlink=900e9,
    generation="blackwell", utilization=0.77,
)  # fmt: skip
# Trays of four; but NVLink joins all 72 of a rack, and what counts as a node is what it joins.
GB200 = B200._replace(
    name="GB200 NVL72", flops=2500e12, memory=186 * GIB, per_node=72, utilization=0.74
)
B300 = B200._replace(name="B300 SXM", memory=270 * GIB, bandwidth=7.7e12, network=100e9)
GB300 = GB200._replace(name="GB300 NVL72", memory=279 * GIB, network=100e9)
ASSUMED = {H800.name, B300.name, GB300.name}  #: to no run of which `utilization` was fitted
ACCELERATORS = {
    gpu.name.split()[0]: gpu for gpu in (A100, H100, H800, H200, B200, B300, GB200, GB300)
}


def faster(gpu: Gpu, precision: str) -> float:
    """How many times as fast as in bf16 the blocks' matrices are on this GPU.

    Raises ValueError for a precision that is unknown, or that the GPU's matrices do not have.
    """
    none = {"ampere": ("fp8", "mxfp8"), "hopper": ("mxfp8",)}.get(gpu.generation, ())
    known = [name for name in FASTER if name not in none]
    if precision not in known:
        on = f" on {gpu.name}" if none else ""
        raise ValueError(f"precision: expected {' or '.join(known)}{on}, got {precision!r}")
    return FASTER[precision]


PCIE_5 = 64e9  # 16 lanes, bytes a second in each direction
ETHERNET_100 = 12.5e9  # 100 Gb/s, the same
