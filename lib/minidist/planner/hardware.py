"""Rates of common hardware, one statement for every worked problem; sources on the page "Rates"."""

from __future__ import annotations

from typing import NamedTuple

# Of large matrices a GPU reaches this part of its peak; of narrow ones less, half at HALF_WIDTH.
# Fitted to published training steps without visible communication: see the page "Rates".
HALF_WIDTH = 600

# Seconds that a message of any size takes: round figures.
NVLINK_LATENCY = 3e-6
NETWORK_LATENCY = 10e-6

GIB = 2**30  # memory is sold in these: "80 GB" are 80 GiB, or 85.9e9 bytes


class Accelerator(NamedTuple):
    """A GPU and the links that it has to others, at their peak."""

    name: str  #: as its vendor calls it
    flops: float  #: dense bf16 operations a second
    memory: float  #: bytes of it
    bandwidth: float  #: of its memory, bytes a second
    nvlink: float  #: to GPUs of its node, bytes a second in each direction
    network: float  #: of its own network card, bytes a second in each direction
    per_node: int = 8  #: GPUs that NVLink joins
    nvlink_latency: float = NVLINK_LATENCY  #: seconds that a message of any size takes
    network_latency: float = NETWORK_LATENCY  #: the same on the network
    utilization: float = 0.53  #: the part of `flops` that training reaches if the model is wide
    half_width: float = HALF_WIDTH  #: of a model that reaches half of that

    def rate(self, width: int) -> float:
        """FLOPs per second in a model of this width, while nothing waits for the network."""
        return self.flops * self.utilization * width / (width + self.half_width)

    @property
    def node_network(self) -> float:
        """Bytes per second that a node sends, with the network cards of all its GPUs."""
        return self.network * self.per_node


A100 = Accelerator("A100 SXM", 312e12, 80 * GIB, 2.039e12, 300e9, 25e9, utilization=0.76)
H100 = Accelerator("H100 SXM", 989e12, 80 * GIB, 3.35e12, 450e9, 50e9)
H200 = Accelerator("H200 SXM", 989e12, 141 * GIB, 4.8e12, 450e9, 50e9)
B200 = Accelerator("B200 SXM", 2250e12, 180 * GIB, 8e12, 900e9, 50e9)
ACCELERATORS = {gpu.name.split()[0]: gpu for gpu in (A100, H100, H200, B200)}

PCIE_4 = 32e9  # 16 lanes, bytes a second in each direction
PCIE_5 = 64e9
ETHERNET_100 = 12.5e9  # 100 Gb/s, bytes a second in each direction


def tokens_to_hide(
    bytes_per_parameter: float,
    operations_per_parameter: float,
    rate: float,
    seconds_per_byte: float,
) -> float:
    """Tokens per GPU and step with which a pass of a dense transformer hides its communication.

    They are T = (W / K) * F * beta: while W bytes per parameter travel, the GPU does K operations
    per token and parameter. Forward has K = 2 and backward K = 4. DDP's backward all-reduces fp32
    gradients: W = 8 (N - 1) / N over N nodes. FSDP gathers in bf16 and reduces in fp32: forward has
    W = 2, backward W = 2 + 4, again times (N - 1) / N.

    Args:
        rate: F, operations per second, as `Accelerator.rate` gives them.
        seconds_per_byte: beta of the node's rate, 1 / `Accelerator.node_network`.
    """
    return bytes_per_parameter / operations_per_parameter * rate * seconds_per_byte
