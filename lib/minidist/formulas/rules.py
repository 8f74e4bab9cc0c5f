"""Rules of thumb about grids, each in closed form: what a search finds by trying, said in advance.

They speak of one layer (`sizes` are those of the whole model), leave out the embedding and the
head, and take a message's bytes over its rate unless they say otherwise. What each leaves out is
named where `tests/formulas/test_rules.py` holds it against the prices of a step. Bytes are those of
autocast: activations and gathered weights in bf16, gradients in fp32.
"""

from __future__ import annotations

import math

from minidist.formulas.compute import FEW, NARROWS, PIECE, rate
from minidist.formulas.links import into_nodes, message, priced
from minidist.formulas.models import effort

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from minidist.formulas.inputs import Gpu, Shape

BF16, FP32 = 2, 4
STATE = 16  # bytes per parameter of weights, gradients and moments, which replicas share


def layer_seconds(sizes: Shape, gpu: Gpu) -> float:
    """Seconds of a token's forward through one layer, on one GPU that has all of it."""
    blocks = effort(sizes, gpu.attention) - sizes.head
    return blocks / sizes.units / sizes.tokens / rate(gpu, sizes.width)


def attention_share(sizes: Shape, gpu: Gpu) -> float:
    """The part of a layer's time that attention takes."""
    slowed = sizes.attention / gpu.attention
    return slowed / (effort(sizes, gpu.attention) - sizes.head)


def group_rate(gpu: Gpu, ranks: int) -> float:
    """Bytes per second of each rank in a ring through whole nodes, or inside one."""
    return gpu.nvlink if ranks <= gpu.per_node else min(gpu.nvlink, gpu.per_node * gpu.network)


# ---- tensor ----


def tensor_loss(sizes: Shape, gpu: Gpu, tensor: float) -> list[float]:
    """What a tensor degree costs, as shares of the compute of an unsplit layer: [sent, narrow].

    Sent: 8 collectives per layer in a forward and a backward, each of 2 D bytes of a token times
    (T - 1) / T, over 3 layer times / T. Narrow: matrices that run like T^(2/3) times narrower ones,
    h (T^(2/3) - 1) / (D + h), for h the width at which a GPU reaches half of its rate.
    """
    width, half = sizes.width, gpu.half_width
    sent = 8 * BF16 * width / group_rate(gpu, math.ceil(tensor)) / 3 / layer_seconds(sizes, gpu)
    return [sent * (tensor - 1), half * (tensor**NARROWS - 1) / (width + half)]


def widest_tensor(sizes: Shape, gpu: Gpu, loss: float) -> float:
    """The tensor degree, no whole number, that costs such a share of the compute, inside a node."""
    whole_node = gpu._replace(per_node=1_000_000)  # as if NVLink went on
    low, high = 1.0, 2.0
    while sum(tensor_loss(sizes, whole_node, high)) < loss:
        high = 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        if sum(tensor_loss(sizes, whole_node, middle)) < loss:
            low = middle
        else:
            high = middle
    return low


# ---- data ----


def hidden_from(
    sizes: Shape, gpu: Gpu, ranks: int, tensor: int = 1, pipeline: int = 1, strategy: str = "fsdp"
) -> float:
    """Tokens per GPU and step from which a layer's exchanges between replicas hide behind compute.

    With latencies, as NCCL's model has them. Forward gathers the layer that comes next; backward
    too, unless the strategy is "fsdp_kept", and reduces gradients; under "hsdp" it also adds up a
    node's shards among nodes, meanwhile. A rank has 1/T of a layer, and 1/P of the layers.
    """
    local, nodes = into_nodes(ranks, gpu, tensor, pipeline)
    part, takes = sizes.largest_unit / tensor, pipeline * layer_seconds(sizes, gpu)
    over = 1 if strategy == "hsdp" else nodes
    gather = priced("all_gather", BF16 * part, over, local, gpu)
    reduce = priced("reduce_scatter", FP32 * part, over, local, gpu)
    backward = reduce if strategy == "fsdp_kept" else gather + reduce
    if strategy == "hsdp":
        backward = max(backward, priced("all_reduce", FP32 * part / local, nodes, 1, gpu))
    return max(gather / takes, backward / 2 / takes)


# ---- pipeline ----


def bubble_tokens(
    sizes: Shape,
    pipeline: int,
    tensor: int = 1,
    context: int = 1,
    interleaved: float = 1,
    batch: int = 1,
    order: str = "1f1b",
) -> float:
    """Tokens per GPU whose compute would take as long as a pipeline's bubble.

    A replica of T C P ranks has n T C P tokens in micro-batches of b S: so many more as P grows
    that of (P - 1) / (m v) only (1 - 1/P) b S / (T C v) / n is left.
    """
    fills = 1 if order == "1f1b" else 3
    return (1 - 1 / pipeline) * batch * sizes.tokens / (tensor * context * interleaved * fills)


def border_tokens(
    sizes: Shape, gpu: Gpu, pipeline: int, tensor: int = 1, context: int = 1, interleaved: float = 1
) -> float:
    """Tokens per GPU whose compute would take as long as messages between interleaved stages.

    2 (P v - 1) of them are waited for, each of 2 D bytes of a micro-batch's tokens, S / (T C).
    """
    numbers = sizes.tokens * sizes.width / tensor / context
    waits = 2 * (pipeline * interleaved - 1) * message(gpu, BF16 * numbers)
    return waits / 3 / layer_seconds(sizes, gpu) / sizes.units


def best_interleaving(
    sizes: Shape, gpu: Gpu, pipeline: int, tensor: int = 1, context: int = 1
) -> float:
    """Stages per rank, no whole number, at which bubble and messages together are least.

    The bubble falls as 1 / v, messages grow with v: the root of what one costs over the other.
    """
    bubble = bubble_tokens(sizes, pipeline, tensor, context)
    more = border_tokens(sizes, gpu, pipeline, tensor, context, 2)
    more -= border_tokens(sizes, gpu, pipeline, tensor, context, 1)
    return max(1.0, min(math.sqrt(bubble / more), (sizes.units + 2) / pipeline))


def pipeline_pays_below(
    sizes: Shape, gpu: Gpu, ranks: int, pipeline: int, tensor: int = 1, context: int = 1
) -> float:
    """Tokens per GPU below which a pipeline beats replicas without one, if both fit.

    Without one, replicas expose what n tokens do not hide; with one, bubble and messages are.
    """
    ways = ["fsdp_kept", "hsdp"]
    alone = min([hidden_from(sizes, gpu, ranks, tensor, 1, way) for way in ways])
    stages = best_interleaving(sizes, gpu, pipeline, tensor, context)
    costs = bubble_tokens(sizes, pipeline, tensor, context, stages)
    return alone - costs - border_tokens(sizes, gpu, pipeline, tensor, context, stages)


def split_to_keep(sizes: Shape, ranks: int, room: float) -> float:
    """The least T P with which weights that are kept, and gradients not yet reduced, fit `room`.

    Bytes on a rank beside activations: 2 + 4 of each of its parameters, and its share of the state.
    """
    return (BF16 + FP32) * sizes.parameters / (room - STATE * sizes.parameters / ranks)


# ---- context ----


def hidden_piece(sizes: Shape, gpu: Gpu, tensor: int = 1, near: bool = False) -> float:
    """Tokens per rank from which ring attention's hops hide behind the attention to a piece.

    A hop brings keys and values of s tokens, s · keys · 2 / T bytes; the attention to them takes
    2 s² D / T operations at a rate that a piece halves at PIECE tokens: a quadratic in s. `near`:
    over NVLink, whose latency is left out.
    """
    keys = sizes.keys / sizes.tokens / sizes.units
    beta, alpha = 1 / gpu.nvlink, 0.0
    if not near:
        beta, alpha = 1 / gpu.network, message(gpu, 0.0)
    speed = gpu.attention * rate(gpu, sizes.width * tensor**-NARROWS) / (2 * sizes.width)
    linear = PIECE - BF16 * keys * beta * speed
    return (math.sqrt(linear * linear + 4 * alpha * tensor * speed) - linear) / 2


def context_loss(sizes: Shape, gpu: Gpu, context: int) -> float:
    """What a context degree costs if its ring hides, as a share of an unsplit layer's compute.

    Only attention is slower, as it works piece by piece.
    """
    piece = sizes.tokens / context
    slower = (1 + PIECE / piece) / (1 + PIECE / sizes.tokens)
    return attention_share(sizes, gpu) * (slower - 1)


def shortest_piece(sizes: Shape, gpu: Gpu) -> float:
    """Tokens per rank down to which halving a sequence costs less than halving its layers.

    From s to s / 2 attention gets slower by PIECE / s of what it took; from T = 1 to 2 all that
    `tensor_loss` says is lost. They are equal at this s, of the piece that is halved.
    """
    whole = 1 + PIECE / sizes.tokens
    return attention_share(sizes, gpu) * PIECE / whole / sum(tensor_loss(sizes, gpu, 2))


# ---- experts ----


def expert_share(gpu: Gpu, width: int, hidden: int, expert: int) -> float:
    """All-to-alls of a layer over the compute of its experts, in a forward and a backward.

    4 · 2 k D bytes of a token against 18 k D H operations: of k, D and the tokens nothing is left
    but the rate at which matrices as wide as D run. The busier of NVLink and network counts.
    """
    local = min(expert, gpu.per_node)
    takes = max((local - 1) / gpu.nvlink, (expert - local) / gpu.network) / expert
    return 4 / 9 * rate(gpu, width) * takes / hidden


def few_tokens_loss(tokens: float, experts: int, active: int, expert: int) -> float:
    """How much longer experts compute because each has few tokens, as a share of their time.

    Of a micro-batch of so many `tokens` per GPU, an expert gets k X / E, from X ranks.
    """
    return FEW * experts / (tokens * active * expert)
