"""Parameters, operations and activations of a model, in closed form.

[Note: one clock] A token's forward takes 2 operations per parameter that multiplies (the head does,
the embedding's lookup does not) and, for causal attention, 2 * layers * sequence * width; backward
takes twice that, and a recomputed block its forward once more. Matrices run at a share of the peak
that grows with the model's width, attention at a share of that: `effort` counts its operations as
many times as it is slower. The shares are fitted to published steps under this very count.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False  # as `typing` has it, which a page has not
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from minidist.formulas.inputs import Shape


def gpt(layers: int, width: int, vocabulary: int, context: int) -> dict[str, Any]:
    """Fields of `Sizes` for a GPT whose head is its embedding's matrix, such as the one in `train`.

    A block has 12 width² weights and keeps 16 width numbers of each token.
    """
    square = width * width
    block = [width, width, 3 * square, 3 * width, square, width]
    block += [width, width, 4 * square, 4 * width, 4 * square, width]
    inner = 15 * width  # numbers of a token that a block keeps, beside its input
    before, after = [vocabulary * width, context * width], [width, width]
    made = 9 * width  # of that, what matrices and attention made
    found = _sizes(layers, width, vocabulary, context, before, block, after, inner, 24 * square, 2)
    found["matrices"] = [[3 * width, width, 1], [width, width, 1], [4 * width, width, 2]]
    return _selective(found, made, 2 * width)


def llama(
    layers: int,
    width: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    context: int,
    tied: bool,
    head: int = 0,
    gates: int = 1,
) -> dict[str, Any]:
    """Fields of `Sizes` for a Llama: RMSNorm, grouped queries, SwiGLU.

    `head`: numbers of an attention's head, if they are not the width over the heads. `gates`: 0 for
    a feed-forward half of two matrices, without the one that gates.

    Of each token a block keeps two inputs of norms and what they make of it, queries, keys and
    values, attention's output, and four times the hidden numbers: two products, the SiLU of one
    and what they make together. Autocast converts a norm's output for each of the five matrices
    that read one, and backward needs each copy.
    """
    across = heads * head if head > 0 else width  # the width of queries
    shared = across // heads * kv_heads  # the width of keys, and of values
    square, up = width * across, width * hidden
    block = [square, width * shared, width * shared, square]
    block += [up for _ in range(2 + gates)] + [width, width]
    inner = 3 * width + 2 * across + 2 * shared + (2 + 2 * gates) * hidden
    after = [width] if tied else [width, vocabulary * width]
    products = 4 * width * (across + shared) + 2 * (2 + gates) * up
    before = [vocabulary * width]
    found = _sizes(layers, width, vocabulary, context, before, block, after, inner, products, 5)
    more = layers * 2 * context * (across - width) * context  # of attention
    found["attention"] += more
    found["operations"] += more
    found["matrices"] = [[across, width, 2], [shared, width, 2], [hidden, width, 2 + gates]]
    made = 2 * width + 2 * across + 2 * shared + (1 + gates) * hidden
    return _selective(found, made, 2 * shared)


def mixture(
    layers: int,
    width: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    vocabulary: int,
    context: int,
    experts: int,
    active: int,
    beside: int = 0,
    head: int = 0,
) -> dict[str, Any]:
    """Fields of `Sizes` for a Llama in which experts take the place of the feed-forward half.

    Each token goes to `active` of them, each `hidden` wide, and to what lies `beside` them: so wide
    is a shared expert. Of a token a block also keeps what was sent to experts, and came back.
    """
    reads = active * hidden + beside
    found = llama(layers, width, reads, heads, kv_heads, vocabulary, context, False, head)
    own = 3 * width * hidden
    more = experts * own - 3 * width * active * hidden + width * experts  # and the router
    sent = active * width
    rest = list(found["block"][:4]) + list(found["block"][7:]) + [width * experts]
    rest += [3 * width * beside] if beside > 0 else []
    found["block"] = rest + [own for _ in range(experts)]
    found["matrices"] = [found["matrices"][0], found["matrices"][1], [experts, width, 1]]
    if beside > 0:
        found["matrices"].append([beside, width, 3])
    found["matrices"].append([hidden, width, 3 * experts])
    found["parameters"] += layers * more
    found["largest_unit"] += more
    found["experts"] = layers * experts * own
    found["routed"] = context * layers * sent
    found["operations"] += context * layers * 2 * width * experts
    for name in ("activations", "activations_selective"):
        found[name] += context * layers * 2 * sent
    found["activations_checkpointed"] += context * 2 * sent
    return found


def _sizes(
    layers: int,
    width: int,
    vocabulary: int,
    context: int,
    before: list[int],
    block: list[int],
    after: list[int],
    inner: int,
    products: int,
    copies: int,
) -> dict[str, Any]:
    """Fields of `Sizes`.

    `products`: operations of a token in a block's matrices. `copies`: how often autocast keeps the
    width of a token in each block besides, once of them the block's input.
    """
    entries, ends, head = layers * width, 2 * width, 2 * vocabulary * width
    attention = layers * 2 * context * width
    return {
        "parameters": sum(before) + layers * sum(block) + sum(after),
        "units": layers,
        "largest_unit": sum(block),
        "operations": context * (layers * products + attention + head),
        "activations": context * (entries + layers * inner + ends),
        "activations_checkpointed": context * (entries + inner + ends),
        "outputs": context * vocabulary,
        "width": width,
        "tokens": context,
        "stream": context * (copies * entries + width),
        "stream_checkpointed": context * (entries + copies * width),
        "attention": context * attention,
        "head": context * head,
        "before": before,
        "block": block,
        "after": after,
        "uneven": 1.0,
        "experts": 0,
        "routed": 0.0,
    }


def _selective(found: dict[str, Any], made: int, keys: int) -> dict[str, Any]:
    """Add what is kept if each block keeps its input and what matrices and attention `made`."""
    tokens, layers = found["tokens"], found["units"]
    more = tokens * layers * made
    found["activations_selective"] = tokens * (layers + 2) * found["width"] + more
    found["stream_selective"] = tokens * (layers + 1) * found["width"]
    found["keys"] = tokens * layers * keys
    return found


def part(
    sizes: Shape,
    tensor: int,
    pipeline: int,
    micro_batches: int,
    interleaved: int,
    order: str = "1f1b",
    context: int = 1,
    expert: int = 1,
) -> dict[str, Any]:
    """Fields of `Sizes` of the largest part of a model that is split, each way.

    Its activations are an average over the micro-batches: see [Note: split] in `planner.split`.
    Of a sequence that is split, `tokens` are a rank's, and so is all that is per sample.
    """
    each = 1 / tensor / micro_batches / context
    whole = tensor * pipeline * context
    blocks, uneven = fullest(sizes, pipeline)
    kept: float = held(pipeline, micro_batches, interleaved, order) * blocks / sizes.units
    ends = max(sum(sizes.before), sum(sizes.after)) if pipeline > 1 else 0
    elsewhere = sizes.experts * (1 - 1 / expert)  # parameters of other ranks' experts
    unit = sizes.largest_unit - elsewhere / sizes.units
    gone = round(elsewhere / sizes.units / sizes.block[len(sizes.block) - 1])  # each a tensor
    most = max((sizes.parameters - elsewhere) / pipeline, blocks * unit, ends)
    entries = sizes.tokens * sizes.width * sizes.units  # kept by checkpoints, of all blocks

    def checkpointed(number: float) -> float:
        inputs = min(entries, number)  # a block's is kept as long as a micro-batch is here
        return (number - inputs + inputs * kept) * each

    return {
        "parameters": math.ceil(most / tensor),
        "units": blocks,
        "largest_unit": math.floor(unit / tensor),
        "operations": sizes.operations / whole,
        "activations": sizes.activations * kept * each,
        "activations_checkpointed": checkpointed(sizes.activations_checkpointed),
        "outputs": sizes.outputs * each,
        "width": sizes.width // tensor,
        "tokens": sizes.tokens // context,
        "stream": sizes.stream * kept * each,
        "stream_checkpointed": checkpointed(sizes.stream_checkpointed),
        "attention": sizes.attention / whole,
        "head": sizes.head / whole,
        "before": sizes.before,
        "block": sizes.block[: len(sizes.block) - gone],
        "after": sizes.after,
        "uneven": uneven,
        "activations_selective": sizes.activations_selective * kept * each,
        "stream_selective": sizes.stream_selective * kept * each,
        "keys": sizes.keys * blocks / sizes.units / tensor / context,
        "routed": sizes.routed * blocks / sizes.units / tensor / context,
        "experts": math.floor(sizes.experts * blocks / sizes.units / tensor / expert),
        "matrices": sizes.matrices if expert == 1 else fewer(sizes.matrices, expert),
    }


def fewer(matrices: Sequence[Sequence[int]], expert: int) -> list[list[int]]:
    """The matrices of a block of which a rank has its part of the experts, the last of them."""
    found = [[each[0], each[1], each[2]] for each in matrices]
    if len(found) > 0:
        found[len(found) - 1][2] //= expert
    return found


def fullest(sizes: Shape, pipeline: int) -> list[Any]:
    """Most blocks of a rank, and the compute of the slowest rank over the average of all.

    No block is divided. The last rank, which has the head, has as many fewer as are best.
    """
    if pipeline == 1:
        return [sizes.units, 1.0]
    head = sizes.head / (sizes.operations - sizes.head) * sizes.units  # as so many blocks
    blocks, slowest = sizes.units, sizes.units + head
    for last in range(sizes.units + 1):
        others = math.ceil((sizes.units - last) / (pipeline - 1))
        if max(others, last + head) <= slowest:
            blocks, slowest = max(others, last), max(others, last + head)
    return [blocks, slowest * pipeline / (sizes.units + head)]


def held(pipeline: int, micro_batches: int, interleaved: int, order: str = "1f1b") -> float:
    """Micro-batches whose activations the fullest rank holds at a time, of its own blocks."""
    if order == "dualpipe" and pipeline > 1:
        return min(micro_batches, pipeline + 0.5)
    warm_up = pipeline - 1 if interleaved > 1 else 0
    return min(micro_batches, (pipeline * interleaved + warm_up) / interleaved)


def bubble(pipeline: int, micro_batches: int, interleaved: int, order: str = "1f1b") -> float:
    """A rank's waiting, as a share of the time in which it computes.

    Zero bubble (ZB-H1) and DualPipe fill two thirds of it, as weights' gradients can wait.
    """
    fills = 1 if order == "1f1b" else 3
    return (pipeline - 1) / (micro_batches * interleaved * fills)


def hops(pipeline: int, micro_batches: int, interleaved: int, order: str = "1f1b") -> float:
    """Messages between ranks of a pipeline for which a step waits, one after the other.

    Under 1F1B and DualPipeV each round of as many micro-batches as ranks goes there and back while
    nobody has other work; stages that are interleaved, and gradients of weights that can wait,
    leave only the ways in and out. As `minidist.schedule.pipeline.replay` finds them, if a message
    is short.
    """
    there_and_back = 2 * (pipeline - 1)
    if pipeline == 1:
        return 0.0
    if interleaved > 1:
        return 2 * (pipeline * interleaved - 1)
    if order == "zero_bubble":
        return 2 * there_and_back
    return max(there_and_back, there_and_back * micro_batches / pipeline + 2 * (pipeline - 2))


def experts_of(sizes: Shape) -> int:
    """Experts of a layer among which a router chooses, each a tensor of its block; 1 if none."""
    if sizes.experts == 0:
        return 1
    return round(sizes.experts / sizes.units / sizes.block[len(sizes.block) - 1])


def root(sizes: Shape) -> int:
    """Parameters outside the blocks, such as embedding and head, which FSDP's root has."""
    return sizes.parameters - sizes.units * sizes.largest_unit


# ---- matrices, orthogonalized: see `update` ----


def newton_schulz(rows: int, columns: int, steps: int = 5) -> int:
    """Operations that orthogonalize a matrix: per step three products.

    x times its transpose, the square of that, and that times x; the short side is squared.
    """
    short, long = min(rows, columns), max(rows, columns)
    return steps * (4 * short * short * long + 2 * short * short * short)


def products(rows: int, columns: int) -> int:
    """Numbers of a matrix and of its square, which an owner holds twice while it orthogonalizes."""
    short = min(rows, columns)
    return rows * columns + short * short


def owned(sizes: Shape, owners: int, experts_owners: int) -> dict[str, float]:
    """What the busiest of the ranks that own the blocks' matrices has of them.

    `operations` and `elements`; `parts`: elements of which it has the part of each; `largest`: the
    most `products`. The most work goes first to whom has least, so an owner has its share of all,
    but at least one matrix. Experts, the last of the matrices, may have fewer owners.
    """
    found = {"operations": 0.0, "elements": 0.0, "parts": 0.0, "largest": 0.0}
    operations, elements = 0.0, 0.0
    for place in range(len(sizes.matrices)):
        rows, columns, count = sizes.matrices[place]
        last = place == len(sizes.matrices) - 1
        number = count * sizes.units / (experts_owners if last else owners)
        found["operations"] += number * newton_schulz(rows, columns)
        found["parts"] += number * rows * columns
        found["largest"] = max(found["largest"], products(rows, columns))
        operations = max(operations, newton_schulz(rows, columns))
        elements = max(elements, rows * columns)
    found["elements"] = max(elements, found["parts"])
    found["operations"] = max(operations, found["operations"])
    return found


# ---- in the order in which gradients become ready ----


def tensors(sizes: Shape) -> list[int]:
    """Elements of each parameter, in the order in which forward uses them."""
    found = list(sizes.before)
    for _ in range(sizes.units):
        found += list(sizes.block)
    return found + list(sizes.after)


def scale(sizes: Shape) -> float:
    """Parameters of this part of a model for each element of `tensors`."""
    return sizes.parameters / sum(tensors(sizes))


def effort(sizes: Shape, attention: float) -> float:
    """Operations of a sample's forward, attention's as if they were slower matrices'.

    `attention`: the part of the matrices' rate that it reaches.
    """
    return sizes.operations - sizes.attention + sizes.attention / attention


def ready(sizes: Shape, head: float) -> list[float]:
    """The time at which backward has made each gradient of `tensors`, as a share of all of it.

    The head comes first, with a share of its own, then block after block, and the embedding's
    gradient last, tied or not.
    """
    clock, found = head, [head for _ in sizes.after]
    block, share = sum(sizes.block), (1 - head) / sizes.units
    for _ in range(sizes.units):
        for place in range(len(sizes.block)):
            clock += share * sizes.block[len(sizes.block) - 1 - place] / block
            found.append(clock)
    found += [1.0 for _ in sizes.before]
    return [found[len(found) - 1 - index] for index in range(len(found))]
