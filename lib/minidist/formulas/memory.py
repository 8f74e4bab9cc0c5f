"""Bytes that a rank holds: the state of training, and the peak of a step.

[Note: memory] Backward begins with all activations: of each output of the model there are the
number itself and, in fp32, its log-probability and the gradient of that; a fused loss has but the
number and its gradient, in the compute dtype. Autocast keeps a copy of the weights in the compute
dtype until backward has used it, and what norms read in fp32; FSDP gathers the weights in the
compute dtype, and computes in nothing else. Backward ends with all gradients. Then AdamW updates
all parameters at a time (`foreach`), with a temporary as large as one of its moments. DDP's buckets
are there all the time, beside the gradients or as their memory. With several micro-batches the
gradients of those before are there, too, when a backward begins.
"""

from __future__ import annotations

from minidist.formulas.models import owned, root, scale, tensors
from minidist.schedule.buckets import assign

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import Each, TrainingStep


MIB = 1048576
STAGES = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "fsdp_kept": 3, "fsdp": 3, "hsdp": 3}


def state(parameters: int, each: Each, ranks: int, stage: int, others: int = 0) -> dict[str, float]:
    """Bytes on a rank of the state that lives from step to step, and their `total`.

    `each`: bytes of one parameter's weights, gradients, master weights and moments. Stage 1 shards
    what only the optimizer uses, 2 the gradients too, 3 the weights too: Rajbhandari et al. (2020),
    "ZeRO", section 3.1. A part that the ranks do not divide is rounded up. `others`: parameters of
    experts that other ranks have; the ranks share what is sharded of these too.
    """
    over = [1 if stage < first else ranks for first in (3, 2, 1)]
    count = [parameters + (others if stage >= first else 0) for first in (3, 2, 1)]
    weights = -(-count[0] * each.weights // over[0])
    gradients = -(-count[1] * each.gradients // over[1])
    master = -(-count[2] * each.master // over[2])
    moments = -(-count[2] * each.moments // over[2])
    return {
        "weights": weights,
        "gradients": gradients,
        "master": master,
        "moments": moments,
        "total": weights + gradients + master + moments,
    }


def memory(step: TrainingStep, strategy: str) -> dict[str, float]:
    """Bytes on a rank by part, and their `peak`: see [Note: memory].

    `optimizer`: master weights and moments. `buckets`: DDP's, if gradients are no views of them.
    `update`: what the optimizer needs while it updates. What is unsharded or cast is there as
    backward `begins`, or as it `ends`; the peak comes with all activations, or all gradients.
    """
    sizes, each, stage = step.sizes, step.each, STAGES[strategy]
    count, unit = sizes.parameters, sizes.largest_unit
    over, others = shards(step, strategy), sizes.experts * (step.expert - 1)
    own = state(count, each, over, stage, others)
    begins, ends, buckets_held = 0.0, 0.0, 0.0
    if each.compute < each.weights:
        begins = each.compute * count
    if strategy == "ddp":
        buckets_held = 0 if step.views else own["gradients"]
        begins += own["gradients"] if step.views else 0
    elif strategy == "zero1":  # which packs its gradients for the optimizer's step
        ends = max(bucket_bytes(step, strategy))
    elif strategy == "zero2":
        ends = _in_flight(step)
        begins += ends
    elif stage == 3:
        # The root and its gradients; a unit and its gradients, the next one's weights on their way,
        # and the gradients of the one before it as they are sent; or the root's as they are sent.
        rest, neighbors = root(sizes), 1 if sizes.units > 1 else 0
        begins = each.compute * (2 * rest + (2 + neighbors) * unit)
        ends = begins + neighbors * unit * each.gradients
        if strategy == "fsdp_kept":  # until backward all weights are there, and nothing is gathered
            begins = each.compute * (count + rest + unit)
            ends -= neighbors * unit * each.compute
        ends = max(ends, each.compute * rest + each.gradients * (rest + unit))
    if step.micro_batches * step.accumulated > 1:
        summed = _summed(step, strategy, own["gradients"])
        begins += summed
        ends += summed if strategy == "fsdp_kept" else 0
    activations = step.batch * sample_activations(step, stage)
    update = temporaries(step, strategy)
    optimizer = own["master"] + own["moments"]
    always = own["weights"] + optimizer + buckets_held
    return {
        "weights": own["weights"],
        "gradients": own["gradients"],
        "optimizer": optimizer,
        "buckets": buckets_held,
        "activations": activations,
        "update": update,
        "begins": begins,
        "ends": ends,
        "always": always,
        "peak": always + max(begins + activations, own["gradients"] + max(ends, update)),
    }


def _summed(step: TrainingStep, strategy: str, own: float) -> float:
    """Bytes of gradients of the micro-batches before: whole ones where weights are kept, too."""
    if strategy == "fsdp_kept":
        return step.each.gradients * step.sizes.parameters
    return 0 if strategy == "ddp" and step.views is True else own


def shards(step: TrainingStep, strategy: str) -> int:
    """Ranks that share the state."""
    return step.local if strategy == "hsdp" else step.local * step.nodes


def sharing(step: TrainingStep, strategy: str) -> int:
    """Ranks that share the optimizer's state, and so its work."""
    return shards(step, strategy) if STAGES[strategy] > 0 else 1


def muons(step: TrainingStep, strategy: str) -> dict[str, float]:
    """What the busiest owner has of the matrices that Muon orthogonalizes: see `models.owned`."""
    over = sharing(step, strategy)
    return owned(step.sizes, step.tensor * over, step.tensor * max(1, over // step.expert))


def temporaries(step: TrainingStep, strategy: str) -> float:
    """Bytes that the optimizer needs while it updates: AdamW's temporary, and what Muon holds.

    Of Muon the fullest owner's parts of all matrices in bf16, its own matrices twice, and four
    products of the largest; these alone where it has all matrices whole.
    """
    over, sizes = sharing(step, strategy), step.sizes
    others = sizes.experts * (step.expert - 1) if STAGES[strategy] > 0 else 0
    found = step.each.update * (sizes.parameters + others) / over
    if step.muon is True:
        own = muons(step, strategy)
        found += 4 * own["largest"]
        if step.tensor * over > 1:
            found += 2 * own["parts"] + 4 * own["elements"]
    return found


def sample_activations(step: TrainingStep, stage: int) -> float:
    """Bytes that forward keeps of a sample, with the loss: see [Note: memory]."""
    sizes, again, used = step.sizes, step.checkpointing, step.each.compute
    less, narrower = sizes.activations_checkpointed, sizes.stream_checkpointed
    if step.selective:
        less, narrower = sizes.activations_selective, sizes.stream_selective
    kept = (1 - again) * sizes.activations + again * less
    stream = (1 - again) * sizes.stream + again * narrower
    wider = 0 if stage == 3 else max(0, step.each.weights - used)
    output = 2 * used if step.fused_loss else used + 8
    return used * kept + wider * stream + output * sizes.outputs


def _in_flight(step: TrainingStep) -> float:
    """Bytes of unsharded gradients under ZeRO-2: one bucket fills, one is reduced, one is new."""
    filled, both = bucket_bytes(step, "zero2"), 0.0
    for place in range(len(filled)):
        both = max(both, filled[place] + (filled[place + 1] if place + 1 < len(filled) else 0))
    return both + max(gradient_bytes(step))


# ---- buckets ----


def gradient_bytes(step: TrainingStep) -> list[float]:
    """Bytes of each gradient, in the order in which forward uses the parameters."""
    each = scale(step.sizes) * step.each.gradients
    return [each * count for count in tensors(step.sizes)]


def buckets(step: TrainingStep, strategy: str = "ddp") -> list[list[int]]:
    """Indexes into `tensors` of each bucket: no tensor is split, DDP's first has only 1 MiB."""
    cap = step.bucket_cap_mb * MIB
    first = min(MIB, cap) if strategy == "ddp" else cap
    return assign([round(nbytes) for nbytes in gradient_bytes(step)], first, cap)


def bucket_bytes(step: TrainingStep, strategy: str = "ddp") -> list[float]:
    """Bytes of gradients in each of `buckets`."""
    sizes = gradient_bytes(step)
    return [sum([sizes[index] for index in bucket]) for bucket in buckets(step, strategy)]
