"""Rates of common hardware, one statement for every worked problem; sources on the page "Rates"."""

from __future__ import annotations

from typing import NamedTuple

# Seconds that a message of any size takes: round figures.
NVLINK_LATENCY = 3e-6
NETWORK_LATENCY = 10e-6

UTILIZATION = 0.4  # of the peak that training commonly reaches


class Accelerator(NamedTuple):
    """A GPU and the links that it has to others, at their peak."""

    name: str  #: as its vendor calls it
    flops: float  #: dense bf16 operations a second
    memory: float  #: bytes
    bandwidth: float  #: of its memory, bytes a second
    nvlink: float  #: to GPUs of its node, bytes a second in each direction
    network: float  #: of its own network card, bytes a second in each direction
    per_node: int = 8  #: GPUs that NVLink joins
    nvlink_latency: float = NVLINK_LATENCY  #: seconds that a message of any size takes
    network_latency: float = NETWORK_LATENCY  #: the same on the network
    utilization: float = UTILIZATION  #: the part of `flops` that training reaches


A100 = Accelerator("A100 SXM", 312e12, 80e9, 2.039e12, 300e9, 25e9)
H100 = Accelerator("H100 SXM", 989e12, 80e9, 3.35e12, 450e9, 50e9)
H200 = Accelerator("H200 SXM", 989e12, 141e9, 4.8e12, 450e9, 50e9)
B200 = Accelerator("B200 SXM", 2250e12, 180e9, 8e12, 900e9, 50e9)
ACCELERATORS = {gpu.name.split()[0]: gpu for gpu in (A100, H100, H200, B200)}

PCIE_4 = 32e9  # 16 lanes, bytes a second in each direction
PCIE_5 = 64e9
ETHERNET_100 = 12.5e9  # 100 Gb/s, bytes a second in each direction
