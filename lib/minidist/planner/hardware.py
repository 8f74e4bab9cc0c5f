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
# H200 to our own: see the page "Rates". Of the B200 no step is in the fit: its parts are assumed.
HALF_WIDTH = 560


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
B200 = H100._replace(
    name="B200 SXM", flops=2250e12, memory=180 * GIB, bandwidth=8e12, nvlink=900e9,
    generation="blackwell",
)  # fmt: skip
ASSUMED = {B200.name}  #: of no run of which the parts were fitted
ACCELERATORS = {gpu.name.split()[0]: gpu for gpu in (A100, H100, H200, B200)}

PCIE_4 = 32e9  # 16 lanes, bytes a second in each direction
PCIE_5 = 64e9
ETHERNET_100 = 12.5e9  # 100 Gb/s, bytes a second in each direction
