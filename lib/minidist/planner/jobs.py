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


SMALL, MEDIUM, LARGE = map(sized, SHAPES)
