"""Linear layers that multiply in 8 bits: torchao's, which narrow what each product sees, with one scale a tensor."""

from __future__ import annotations

import logging

from torch import nn

from forescale.errors import ForescaleError
from forescale.question import Question

logging.disable(logging.ERROR)  # torchao tells of every kernel of its own that this machine has no use for
try:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
except ImportError:
    Float8LinearConfig = None
finally:
    logging.disable(logging.NOTSET)

RECIPES = {"current": "tensorwise"}
"""Scaling recipes of a question, by torchao's names."""
UNIT = 16
"""Both extents of a weight whose products run in 8 bits are multiples of it (cuBLASLt)."""


def multiplies_narrow(question: Question) -> bool:
    """Return whether linear layers of a question multiply in 8 bits as these do."""
    types = question.workload.precision
    return types.compute == "fp8" and types.recipe in RECIPES


def narrow_layers(layers: nn.Module, question: Question) -> None:
    """Let the linear layers within `layers` multiply in 8 bits, forward and for both gradients.

    Raises
    ------
    ForescaleError
        If torchao is not installed.
    """
    if Float8LinearConfig is None:
        raise ForescaleError("products in fp8 need torchao; install it with pip install 'forescale[bench]'")
    convert_to_float8_training(
        layers,
        config=Float8LinearConfig.from_recipe_name(RECIPES[question.workload.precision.recipe]),
        module_filter_fn=lambda layer, _: all(extent % UNIT == 0 for extent in layer.weight.shape),
    )
