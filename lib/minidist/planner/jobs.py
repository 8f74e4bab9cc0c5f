"""The three jobs of every worked problem: real models, whose runs others have published."""

from minidist.planner.sizes import Sizes

SMALL = Sizes.llama(28, 3072, 8192, 24, 8, 128_256, 8192, tied=True)  # Llama 3.2 3B
MEDIUM = Sizes.llama(32, 4096, 14_336, 32, 8, 128_256, 8192)  # Llama 3.1 8B
LARGE = Sizes.llama(126, 16_384, 53_248, 128, 8, 128_256, 8192)  # Llama 3.1 405B
