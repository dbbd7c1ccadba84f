"""A diffusion transformer, recorded by `forescale trace examples/own_dit.py:build -o dit.json --seq-len 256`.

The sequence length is the number of patches of an image's latents.
"""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss, scaled_dot_product_attention

PATCH = 16
"""Values of a patch: 2 × 2 pixels of 4 channels."""


class DitBlock(nn.Module):
    """Attention and feed-forward whose norms are scaled and shifted by the condition (Peebles and Xie 2023)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.condition = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Return the stream with what attention and feed-forward add."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.condition(c)[:, None].chunk(6, dim=-1)
        batch, length, width = x.shape
        normed = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(normed).chunk(3, -1)
        )
        mixed = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + gate1 * self.out(mixed)
        added: torch.Tensor = x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return added


class Dit(nn.Module):
    """Patches in, the noise of patches out."""

    def __init__(self, depth: int, width: int, heads: int) -> None:
        super().__init__()
        self.patches, self.time = nn.Linear(PATCH, width), nn.Linear(256, width)
        self.blocks = nn.ModuleList(DitBlock(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, PATCH)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Return the predicted noise."""
        c = nn.functional.silu(self.time(t))
        x = self.patches(x)
        for block in self.blocks:
            x = block(x, c)
        noise: torch.Tensor = self.head(self.norm(x))
        return noise


def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Return patches and embedded times."""
    return {"x": torch.empty(batch, length, PATCH), "t": torch.empty(batch, 256)}


def loss(noise: torch.Tensor) -> torch.Tensor:
    """Return the squared error."""
    return mse_loss(noise.float(), torch.zeros_like(noise, dtype=torch.float32))


def build(depth: int = 28, width: int = 1152, heads: int = 16) -> tuple[nn.Module, Any, Any]:
    """Return DiT-XL/2 with its inputs and its loss."""
    return Dit(depth, width, heads), inputs, loss
