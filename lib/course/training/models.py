"""Small networks to train in parallel, and a Llama's block; each meets something of its own.

The MLP is as plain as can be. The convolutional net keeps running statistics in buffers, which are
no parameters. The GPT uses one matrix twice. All draw their first weights from torch's generator:
call `torch.manual_seed` before, and they come out alike.
"""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu

from minidist.train.gpt import GPT

__all__ = ["GPT", "LlamaBlock", "convnet", "mlp"]


def mlp(sizes: Sequence[int] = (64, 64, 10)) -> nn.Sequential:
    """Linear layers with a ReLU between each two, for inputs or images of `sizes[0]` numbers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def convnet() -> nn.Sequential:
    """For the digits: [batch, 1, 8, 8] to [batch, 10]; two convolutions with BatchNorm, a linear.

    BatchNorm: Ioffe and Szegedy (2015), section 3. While it trains, the output for one image
    depends on the other images of the batch.
    """

    def halve(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*halve(1, 8), *halve(8, 16), nn.Flatten(), nn.Linear(16 * 2 * 2, 10))


class LlamaBlock(nn.Module):
    """A Llama's block, for what autograd keeps of it: grouped queries and SwiGLU.

    LayerNorm stands for RMSNorm, of which a GPU's kernel keeps as much; the rotations, of which
    nothing is kept, are left out. Grattafiori et al. (2024), section 3.2.
    """

    def __init__(self, width: int, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        shared = width // heads * kv_heads

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        self.heads = heads, kv_heads, kv_heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.ModuleList(linear(width, outputs) for outputs in (width, shared, shared))
        self.out = linear(width, width)
        self.gate, self.up = linear(width, hidden), linear(width, hidden)
        self.down = linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """The next block's input, from this one's [batch, time, width]."""
        y = self.norm(x)
        pairs = zip(self.qkv, self.heads, strict=True)
        query, key, value = (
            make(y).unflatten(-1, (heads, -1)).transpose(1, 2) for make, heads in pairs
        )
        y = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.mlp_norm(x)
        z: Tensor = x + self.down(silu(self.gate(y)) * self.up(y))
        return z
