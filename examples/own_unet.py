"""A U-Net, recorded by `forescale trace examples/own_unet.py:build -o unet.json --seq-len 64`.

The sequence length is the width of an image, which is 64 pixels high.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.functional import interpolate, mse_loss, silu

HEIGHT, CHANNELS = 64, 4


class Residual(nn.Module):
    """Two convolutions with group norms, added to what they read."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, before), nn.GroupNorm(8, after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        inner = self.conv1(silu(self.norm1(x)))
        added: torch.Tensor = self.skip(x) + self.conv2(silu(self.norm2(inner)))
        return added


class UNet(nn.Module):
    """Levels of half the size down and up again, each joined to the one opposite."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.start = nn.Conv2d(CHANNELS, widths[0], 3, padding=1)
        pairs = tuple(pairwise(widths))
        self.down = nn.ModuleDict({str(i): Residual(a, b) for i, (a, b) in enumerate(pairs)})
        self.middle = Residual(widths[-1], widths[-1])
        self.up = nn.ModuleDict({str(i): Residual(2 * b, a) for i, (a, b) in enumerate(pairs)})
        self.end = nn.Conv2d(widths[0], CHANNELS, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the predicted noise."""
        x = self.start(x)
        kept = []
        for level in self.down.values():
            x = level(x)
            kept.append(x)
            x = x[..., ::2, ::2]
        x = self.middle(x)
        for name in reversed(list(self.up)):
            x = interpolate(x, scale_factor=2.0, mode="nearest")
            x = self.up[name](torch.cat([x, kept.pop()], dim=1))
        noise: torch.Tensor = self.end(x)
        return noise


def inputs(batch: int, length: int) -> dict[str, torch.Tensor]:
    """Return images."""
    return {"x": torch.empty(batch, CHANNELS, HEIGHT, length)}


def loss(noise: torch.Tensor) -> torch.Tensor:
    """Return the squared error."""
    return mse_loss(noise.float(), torch.zeros_like(noise, dtype=torch.float32))


def build(widths: tuple[int, ...] = (128, 256, 512, 1024)) -> tuple[nn.Module, Any, Any]:
    """Return the module with its inputs and its loss."""
    return UNet(widths), inputs, loss
