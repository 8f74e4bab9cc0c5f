"""Questions that make no sense, each refused in a sentence: the argument, expected and got."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import Shape


def of_job(job: str, jobs: list[str], gpus: float, tokens: float, sequence: float) -> str:
    """The reason why this job has no step on so many GPUs and tokens of each; "" if it has."""
    if job not in jobs:
        return one_of("job", job, jobs)
    for name, number in (("gpus", gpus), ("tokens", tokens), ("sequence", sequence)):
        if number < 1 or number // 1 != number:
            return f"{name}: expected a whole number of at least 1, got {number}"
    if tokens // sequence * sequence != tokens:
        return f"tokens: expected a multiple of a sequence's {sequence}, got {tokens}"
    return ""


def one_of(argument: str, value: str, known: list[str]) -> str:
    """A sentence if a name is none of those that are known; "" if it is."""
    if value in known:
        return ""
    return f"{argument}: expected one of {', '.join(known)}, got '{value}'"


def share(argument: str, value: float) -> str:
    """A sentence if a number is no share of something; "" if it is."""
    if 0 <= value <= 1:
        return ""
    return f"{argument}: expected a share from 0 to 1, got {value}"


def of_split(
    sizes: Shape, ranks: int, tensor: int, pipeline: int, micro_batches: int, interleaved: int
) -> str:
    """The reason why a model cannot be split so, or not on these ranks; "" if it can."""
    group = tensor * pipeline
    if ranks // group * group != ranks:
        return f"ranks: expected a multiple of tensor * pipeline = {group}, got {ranks}"
    if sizes.width // tensor * tensor != sizes.width:
        return f"tensor: expected a divisor of the model's width {sizes.width}, got {tensor}"
    if pipeline * interleaved > sizes.units + 2:
        return (
            f"pipeline: expected at most {sizes.units + 2} stages, one for each block, the "
            f"embedding and the head, got {pipeline * interleaved}"
        )
    if pipeline == 1 and micro_batches > 1:
        return f"micro_batches: expected 1 without a pipeline, got {micro_batches}"
    if pipeline == 1 and interleaved > 1:
        return f"interleaved: expected 1 without a pipeline, got {interleaved}"
    if interleaved > 1 and micro_batches // pipeline * pipeline != micro_batches:
        return (
            f"micro_batches: expected a multiple of the pipeline's {pipeline} ranks, whose stages "
            f"are interleaved, got {micro_batches}"
        )
    return ""
