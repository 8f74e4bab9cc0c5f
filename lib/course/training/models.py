"""Three small networks to train in parallel, each with something that data parallelism meets.

The MLP is as plain as can be. The convolutional net keeps running statistics in buffers, which are
no parameters. The GPT uses one matrix twice. All draw their first weights from torch's generator:
call `torch.manual_seed` before, and they come out alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


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


class GPT(nn.Module):
    """A small language model: token ids in, scores of the next token out.

    Radford et al. (2019), section 2.3, with weights as there: LayerNorm before each part of a
    block, and the head is the embedding's own matrix. It has no dropout.

    Args:
        vocab: number of different tokens.
        width: features of a token, a multiple of `heads`.
        layers: number of blocks.
        heads: of attention, in each block.
        context: the most tokens that it can look at.
    """

    def __init__(
        self, vocab: int, width: int = 64, layers: int = 2, heads: int = 4, context: int = 32
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        self.head.weight = self.token.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Score the tokens that may follow each of `ids` [batch, time]: [batch, time, vocab].

        The scores at time t depend only on the tokens up to t.
        """
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


class _Block(nn.Module):
    """Tokens look at earlier ones, then each thinks for itself; both add to what was there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        hidden = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.think = nn.Sequential(nn.LayerNorm(width), *hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)  # each [batch, heads, time, features]
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        thought: torch.Tensor = self.think(x)
        return x + thought
