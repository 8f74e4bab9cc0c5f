"""Communication inside layers: of tensor, context and expert parallelism."""

from __future__ import annotations

from minidist.formulas.compute import again, attention_pass, compute
from minidist.formulas.links import into_nodes, message, priced
from minidist.formulas.models import hops

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import TrainingStep


def tensor_calls(step: TrainingStep) -> list[float]:
    """Collectives of tensor parallelism in a step, and the bytes of each."""
    if step.tensor == 1:
        return [0, 0.0]
    sizes = step.sizes
    calls = round(4 * (2 + again(step)) * sizes.units * step.micro_batches)
    tokens = step.batch / step.micro_batches * sizes.tokens
    return [calls, tokens * sizes.width * step.tensor * step.each.compute]


def tensor_parallel(step: TrainingStep) -> float:
    """Seconds of tensor parallelism's collectives, which nothing hides."""
    calls, size = tensor_calls(step)
    local, nodes = into_nodes(step.tensor, step.gpu)
    return calls * priced("all_gather", size, nodes, local, step.gpu)


def context_parallel(step: TrainingStep) -> float:
    """Seconds of ring attention's hops that the attention of a piece does not hide.

    Each hop passes keys and values on, in backward their gradients too, while as much is computed.
    """
    if step.context == 1:
        return 0.0
    sizes, span = step.sizes, step.tensor * step.context
    span = span * step.pipeline if step.nearer == "pipeline" else span
    near = span <= step.gpu.per_node
    hops = (step.context - 1) * sizes.units * step.micro_batches
    piece = step.batch / step.micro_batches * sizes.keys / sizes.units * step.each.compute
    hop = message(step.gpu, piece, near)
    hides = attention_pass(step) / (step.context * sizes.units * step.micro_batches)
    return (3 + again(step)) * hops * max(0.0, hop - hides)


def expert_parallel(step: TrainingStep) -> float:
    """Seconds of the all-to-alls that take tokens to their experts, and back.

    A rank's own node takes a part of them; the busier of the two kinds of links sets the pace.
    DualPipe computes another micro-batch meanwhile.
    """
    if step.expert == 1:
        return 0.0
    gpu, local = step.gpu, min(step.expert, step.local)
    size = step.batch * step.sizes.routed * step.each.compute / step.expert
    takes = max(size * (local - 1) / gpu.nvlink, size * (step.expert - local) / gpu.network)
    latency = message(gpu, 0.0) if step.expert > local else 0.0
    takes = (4 + 2 * again(step)) * (takes + latency * step.sizes.units * step.micro_batches)
    if step.order == "dualpipe":
        return max(0.0, takes - sum(compute(step)))
    return takes


def borders(step: TrainingStep) -> float:
    """Seconds in which a pipeline waits for messages from stage to stage; see `models.hops`.

    They stay in a node if the whole pipeline does.
    """
    numbers = step.batch / step.micro_batches * step.sizes.tokens * step.sizes.width
    waits = hops(step.pipeline, step.micro_batches, step.interleaved, step.order)
    ranks = step.tensor * step.pipeline * step.local * step.nodes
    near = step.nearer == "pipeline" or ranks <= step.gpu.per_node
    return waits * message(step.gpu, numbers * step.each.compute, near)


def within(step: TrainingStep) -> float:
    """Seconds of communication inside layers that nothing hides."""
    return tensor_parallel(step) + context_parallel(step) + expert_parallel(step)


def sent_inside(step: TrainingStep) -> dict[str, float]:
    """Bytes that a rank sends inside layers.

    `tensor`: an all-gather or a reduce-scatter of activations before and after each half of a
    layer. `context`: keys and values once in forward, and twice in backward, with their gradients.
    `expert`: tokens to their experts and back, and the same of gradients.
    """
    calls, call = tensor_calls(step)
    size = step.batch * step.each.compute
    passed = 3 + again(step)
    routed = (passed + 1 + again(step)) * step.sizes.routed * size
    return {
        "tensor": calls * call * (step.tensor - 1) / step.tensor,
        "context": passed * (step.context - 1) * step.sizes.keys * size,
        "expert": routed * (step.expert - 1) / step.expert,
    }
