"""A model split before data parallelism: tensor parallelism inside a layer, a pipeline over layers.

[Note: split] `tensor` ranks share each matrix and, in the sequence-parallel form, each activation.
`pipeline` ranks have some of the blocks each, in `interleaved` stages, and the fullest counts: no
block is divided, and the last rank has fewer, as it has the head. Under 1F1B the first rank holds
the activations of p micro-batches, and of at most (p - 1) / v more if stages are interleaved. The
logits are counted on every rank, though only the last has them. The bubble is (p - 1) / (m v) of
the time in which that rank computes, as if all were as full. Borders cost bytes and no time, as if
each sent while the next micro-batch computes; where a rank has none left to compute, as with m = p,
a step takes a little longer than is said here.

Shoeybi et al. (2019), *Megatron-LM*; Korthikanti et al. (2023), sections 4 and 5; Narayanan et al.
(2021), section 2.
"""

from typing import NamedTuple

from minidist.formulas import models, refusals
from minidist.planner.sizes import Sizes
from minidist.schedule.checks import whole_number


class Split(NamedTuple):
    """Among how many ranks a model is split, each way."""

    tensor: int = 1
    pipeline: int = 1
    micro_batches: int = 1  #: of a step, which pass through the pipeline
    interleaved: int = 1  #: stages of a rank

    @property
    def ranks(self) -> int:
        """Ranks that have a whole model among them."""
        return self.tensor * self.pipeline

    @property
    def bubble(self) -> float:
        """Time that a rank waits, as a share of the time in which it computes."""
        return models.bubble(*self[1:])

    @property
    def held(self) -> float:
        """Micro-batches whose activations the first rank holds at a time, of its own blocks."""
        return models.held(*self[1:])

    def part(self, sizes: Sizes) -> Sizes:
        """Sizes of the largest part. Its activations are an average over the micro-batches."""
        return Sizes(**models.part(sizes, *self))


def check_split(split: Split, sizes: Sizes, ranks: int) -> None:
    """Raise ValueError or TypeError for a model that cannot be split so, or not on these ranks."""
    for name, degree in split._asdict().items():
        whole_number(name, degree, 1)
    if refusal := refusals.of_split(sizes, ranks, *split):
        raise ValueError(refusal)
