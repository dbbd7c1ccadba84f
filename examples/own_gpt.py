"""A GPT of one's own, recorded by `forescale trace examples/own_gpt.py:build -o gpt.json`."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(nn.Module):
    """Attention and feed-forward that share one norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream with what attention and feed-forward add."""
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, 16, -1).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        added: torch.Tensor = x + self.mlp(x)
        return added


class Gpt(nn.Module):
    """Embedding, blocks and head."""

    vocab_size = 50304

    def __init__(self, layers: int = 24, width: int = 2048) -> None:
        super().__init__()
        self.embed = nn.Embedding(self.vocab_size, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, self.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.head(x).float().flatten(0, 1), labels.flatten())


def build() -> nn.Module:
    """Return the module."""
    return Gpt()
