"""The small GPT that `python -m minidist.train` trains."""

import torch
from torch import nn
from torch.nn import functional


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
    """Attention to earlier tokens, then an MLP for each token; both add to what was there."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        hidden = nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), *hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = heads.unbind(2)  # each [batch, heads, time, features]
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.mlp(x)
        return y
