"""Low-rank adapters as PEFT adds them to linear layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from forescale.errors import not_one_of
from forescale.graph.peft import AROUND
from forescale.trace.kernels import RULES
from forescale.trace.recorder import current_recorder

NOTHING = {"elements": 0, "read": 0, "written": 0}
RULES[AROUND.operator] = lambda _: [(AROUND.kind, AROUND.dtype, NOTHING)] * AROUND.count


class LoraLinear(nn.Module):
    """A frozen linear layer with an adapter in fp32 (PEFT, tuners/lora/layer.py, Linear.forward)."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, dtype=torch.float32)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, dtype=torch.float32)
        self.scaling = 1.0 / rank

    def forward(self, x: Tensor) -> Tensor:
        """Return the result of the layer plus that of the adapter, in the type of the layer."""
        if (recorder := current_recorder()) is not None:
            recorder.append(AROUND.operator, [], [])
        result: Tensor = self.base_layer(x)
        kind = result.dtype
        result = result + self.lora_B(self.lora_A(x.to(torch.float32))) * self.scaling
        return result.to(kind)


def add_adapters(module: nn.Module, rank: int, targets: Sequence[str]) -> None:
    """Freeze a module and give its linear layers of some names adapters.

    Raises
    ------
    ForescaleError
        If it has no linear layer of such a name.
    """
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    places = [
        (parent, name, child)
        for parent in module.modules()
        for name, child in parent.named_children()
        if name in targets and isinstance(child, nn.Linear)
    ]
    names = {
        name.rpartition(".")[2] for name, child in module.named_modules() if isinstance(child, nn.Linear)
    }
    if missing := [target for target in targets if target not in {name for _, name, _ in places}]:
        raise not_one_of("lora_targets", missing[0], sorted(names))
    for parent, name, child in places:
        with torch.device("meta"):
            setattr(parent, name, LoraLinear(child, rank))
