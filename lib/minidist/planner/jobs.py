"""The three jobs of every worked problem: real models, whose runs others have published."""

from minidist.planner.sizes import Sizes

SEQUENCE = 8192  # tokens
SHAPES = {  # layers, width, hidden, heads, of keys, vocabulary, head tied to the embedding
    "small": (28, 3072, 8192, 24, 8, 128_256, True),  # Llama 3.2 3B
    "medium": (32, 4096, 14_336, 32, 8, 128_256, False),  # Llama 3.1 8B
    "large": (126, 16_384, 53_248, 128, 8, 128_256, False),  # Llama 3.1 405B
}


def sized(job: str, sequence: int = SEQUENCE) -> Sizes:
    """Sizes of a job, by its name, in sequences of so many tokens."""
    layers, width, hidden, heads, kv_heads, vocabulary, tied = SHAPES[job]
    return Sizes.llama(layers, width, hidden, heads, kv_heads, vocabulary, sequence, tied)


def matrices(job: str) -> list[tuple[int, int]]:
    """Rows and columns of the matrices in a job's blocks, which an optimizer such as Muon takes."""
    layers, width, hidden, heads, kv_heads, *_ = SHAPES[job]
    keys = width // heads * kv_heads
    attention = [(width, width), (keys, width), (keys, width), (width, width)]
    return [*attention, (hidden, width), (hidden, width), (width, hidden)] * layers


SMALL, MEDIUM, LARGE = map(sized, SHAPES)
