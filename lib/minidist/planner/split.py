"""A model split before data parallelism: tensor parallelism inside a layer, a pipeline over layers.

[Note: split] `tensor` ranks share each matrix and, in the sequence-parallel form, each activation.
`pipeline` ranks have some of the blocks each, in `interleaved` stages; embedding and head weigh
about as much as a block each. Under 1F1B the first rank holds the activations of p micro-batches,
and of at most (p - 1) / v more if stages are interleaved. The logits are counted on every rank,
though only the last has them. The bubble is (p - 1) / (m v) of the time in which a rank computes.
Borders cost bytes and no time, as if each sent while the next micro-batch computes; where a rank
has none left to compute, as with m = p, a step takes a little longer than is said here.

Shoeybi et al. (2019), *Megatron-LM*; Korthikanti et al. (2023), sections 4 and 5; Narayanan et al.
(2021), section 2.
"""

from typing import NamedTuple

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
        """That have a whole model among them."""
        return self.tensor * self.pipeline

    @property
    def bubble(self) -> float:
        """How long a rank waits, as a share of the time in which it computes."""
        return (self.pipeline - 1) / (self.micro_batches * self.interleaved)

    @property
    def held(self) -> float:
        """Micro-batches whose activations the first rank holds at a time, of its own blocks."""
        warm_up = (self.pipeline - 1) * (self.interleaved > 1)
        stages = self.pipeline * self.interleaved + warm_up
        return min(self.micro_batches, stages / self.interleaved)

    def part(self, sizes: Sizes) -> Sizes:
        """Sizes of the first rank's part. Its activations are an average over the micro-batches."""
        per_micro_batch = 1 / self.tensor / self.micro_batches
        entries = sizes.tokens * sizes.width * sizes.units  # which checkpoints keep of all blocks
        kept = self.held / self.pipeline
        again = entries * kept + max(0, sizes.activations_checkpointed - entries)
        return sizes._replace(
            parameters=-(-sizes.parameters // self.ranks),
            units=max(1, sizes.units // self.pipeline),
            largest_unit=sizes.largest_unit // self.tensor,
            operations=sizes.operations / self.ranks,
            activations=sizes.activations * kept * per_micro_batch,
            activations_checkpointed=again * per_micro_batch,
            outputs=sizes.outputs * per_micro_batch,
            width=sizes.width // self.tensor,
            stream=sizes.stream * kept * per_micro_batch,
        )


WHOLE = Split()


def check_split(split: Split, sizes: Sizes, ranks: int) -> None:
    """Raise ValueError or TypeError for a model that cannot be split so, or not on these ranks."""
    for name, degree in split._asdict().items():
        whole_number(name, degree, 1)
    tensor, pipeline, micro_batches, interleaved = split
    if ranks % split.ranks:
        raise ValueError(
            f"ranks: expected a multiple of tensor * pipeline = {split.ranks}, got {ranks}"
        )
    if sizes.width % tensor:
        raise ValueError(
            f"tensor: expected a divisor of the model's width {sizes.width}, got {tensor}"
        )
    if pipeline * interleaved > sizes.units + 2:
        raise ValueError(
            f"pipeline: expected at most {sizes.units + 2} stages, one for each block, the "
            f"embedding and the head, got {pipeline * interleaved}"
        )
    if pipeline == 1 and max(micro_batches, interleaved) > 1:
        name = "micro_batches" if micro_batches > 1 else "interleaved"
        raise ValueError(f"{name}: expected 1 without a pipeline, got {getattr(split, name)}")
    if interleaved > 1 and micro_batches % pipeline:
        raise ValueError(
            f"micro_batches: expected a multiple of the pipeline's {pipeline} ranks, whose stages "
            f"are interleaved, got {micro_batches}"
        )
