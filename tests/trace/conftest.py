"""Small modules, recorded once for all tests."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch")
warnings.filterwarnings("ignore")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from forescale.trace import trace  # noqa: E402


class Block(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.dropout = dropout

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            item.view(batch, length, 4, -1).transpose(1, 2) for item in self.qkv(self.norm(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(
            self.out(mixed.transpose(1, 2).reshape(batch, length, width)), self.dropout, self.training
        )
        return x + self.down(F.gelu(self.up(x)))


class Gpt(nn.Module):
    vocab_size = 512

    def __init__(self, layers=3, width=64, dropout=0.1):
        super().__init__()
        self.embed = nn.Embedding(self.vocab_size, width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, self.vocab_size, bias=False)

    def forward(self, tokens, labels):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x)).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gpt(**sizes):
    with torch.device("meta"):
        return Gpt(**sizes)


@pytest.fixture(scope="session")
def traced():
    """A GPT of three blocks in fp32, and its module."""
    module = gpt()
    return module, trace(module, seq_len=64, name="gpt")


@pytest.fixture(scope="session")
def autocast():
    """The same under autocast."""
    return trace(gpt(), seq_len=64, autocast=True, name="gpt")
