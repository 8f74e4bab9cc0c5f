"""What the chapter on DDP reads in published records of GPUs."""

import numpy as np
from torch import nn

from course.pages.published import published
from minidist.parallel.sharding.partition import MIB, assign


def resnet_50() -> list[int]:
    """Bytes of its parameters in the order of their definition."""
    sizes: list[int] = []

    def conv(inputs: int, outputs: int, kernel: int) -> None:
        sizes.extend([4 * inputs * outputs * kernel**2, 4 * outputs, 4 * outputs])  # and BatchNorm

    conv(3, 64, 7)
    inputs = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            conv(inputs, width, 1)
            conv(width, width, 3)
            conv(width, 4 * width, 1)
            if block == 0:
                conv(inputs, 4 * width, 1)
            inputs = 4 * width
    return [*sizes, *(p.nbytes for p in nn.Linear(inputs, 1000, device="meta").parameters())]


def test_torch_s_buckets_in_the_trace_are_those_of_the_rule_to_the_byte() -> None:
    trace, sizes = published("ddp_trace"), resnet_50()
    assert (sum(sizes) // 4, len(sizes)) == (trace["parameters"], trace["parameter_tensors"])
    buckets = [sum(sizes[i] for i in bucket) for bucket in assign(sizes, MIB, 25 * MIB)]
    assert [round(size / 1e6, 1) for size in buckets] == [8.2, 31.5, 26.3, 26.6, 9.7]
    for step in trace["steps"]:
        calls = [dict(zip(step["nccl_columns"], row, strict=True)) for row in step["nccl"]]
        sent = [call["elements"] for call in calls if call["collective"] == "all_reduce"]
        assert [4 * elements for elements in sent] == buckets


def test_buffers_go_first_and_copies_out_of_the_buckets_come_last() -> None:
    trace = published("ddp_trace")
    step = trace["steps"][0]
    calls = [dict(zip(step["nccl_columns"], row, strict=True)) for row in step["nccl"]]
    assert [call["elements"] for call in calls[:2]] == [53_120, 53]
    assert round(sum(call["duration_ms"] for call in calls[:2]), 2) == 0.04
    assert calls[2]["duration_ms"] > calls[3]["duration_ms"], "8.2 MB, and 31.5"
    copies = [start for start, _ in step["compute"]["backward"]]
    assert sum(start > step["last_all_reduce_end_ms"] for start in copies) > 100
    for each in trace["steps"]:
        assert each["backward_end_ms"] - each["last_all_reduce_end_ms"] > 14


def test_what_a_bucket_exposes_is_the_bucket() -> None:
    record = published("bucket_sweep")
    size, ddp, overlapped, at_the_end = np.array(record["rows"]).T
    exchange = at_the_end.mean() - ddp.mean()
    rule = ddp.mean() + exchange * np.minimum(size * MIB / (4 * record["parameters"]), 1)
    assert np.abs(overlapped / rule - 1).max() < 0.04
    assert 0.19 < exchange / ddp.mean() < 0.21, "a fifth of backward"
