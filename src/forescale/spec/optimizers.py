"""Optimizers: the states that each keeps per parameter, and its names in the files of frameworks.

A new optimizer is a name and a row here; it passes `tests/conformance/test_optimizers.py`, which runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, TypeAlias

from forescale.spec.kinds import Kind

OptimizerName: TypeAlias = Literal["adamw", "adafactor", "adagrad", "lion", "muon", "sgd"]
ENDS = ("embedding.", "head.")


class Weight(Protocol):
    """What the states of an optimizer depend on: the name, size and shape of one parameter."""

    @property
    def name(self) -> str:
        """Name of the parameter in its block."""

    @property
    def elements(self) -> float:
        """Number of elements."""

    @property
    def matrix(self) -> bool:
        """Whether it is a matrix, rather than a norm or a bias."""

    @property
    def shape(self) -> tuple[float, ...]:
        """Sizes of its dimensions; experts are the dimensions before the last two."""


class Optimizer(Kind, frozen=True, kw_only=True):
    """What an optimizer keeps in addition to the master weights, and where it runs."""

    name: OptimizerName
    moments: Callable[[Weight], float]
    """Returns the elements of all moments of one parameter."""
    elementwise: bool
    """Whether the update of an element depends on no other element, so that states can be sharded anywhere."""
    torch_class: str = ""
    """Class of torch.optim that the bench runs; empty if it has none."""


def _per_element(count: float) -> Callable[[Weight], float]:
    """Return the moments of an optimizer that keeps `count` per element."""
    return lambda weight: count * weight.elements


def _muon(weight: Weight) -> float:
    """Return one momentum for hidden matrices; AdamW updates embedding, head and vectors."""
    hidden = weight.matrix and not weight.name.startswith(ENDS)
    return weight.elements * (1.0 if hidden else 2.0)


def _adafactor(weight: Weight) -> float:
    """Return sums of rows and columns of matrices, one pair for each expert; second moments of vectors; no first."""
    if not weight.matrix:
        return weight.elements
    rows, columns = weight.shape[-2:]
    return weight.elements * (1.0 / rows + 1.0 / columns)


_KINDS = (
    Optimizer(  # arXiv:1711.05101
        name="adamw",
        moments=_per_element(2.0),
        elementwise=True,
        torch_class="AdamW",
        frameworks={
            "megatron": ("adam",),
            "deepspeed": ("AdamW", "Adam", "FusedAdam", "DeepSpeedCPUAdam"),
            "maxtext": ("adamw", "adam_pax"),
            "nanotron": ("adamw",),
        },
    ),
    Optimizer(  # without momentum: arXiv:1804.04235, section 3
        name="adafactor",
        moments=_adafactor,
        elementwise=False,
        torch_class="Adafactor",
        frameworks={"deepspeed": ("Adafactor",)},
    ),
    Optimizer(  # Duchi et al. 2011, JMLR 12: the sum of squared gradients
        name="adagrad",
        moments=_per_element(1.0),
        elementwise=True,
        torch_class="Adagrad",
        frameworks={"deepspeed": ("Adagrad",)},
    ),
    Optimizer(  # arXiv:2302.06675, Algorithm 2
        name="lion",
        moments=_per_element(1.0),
        elementwise=True,
        frameworks={"megatron": ("lion",), "deepspeed": ("Lion",)},
    ),
    Optimizer(  # Jordan et al. 2024, with AdamW for the rest (arXiv:2502.16982, section 2.2)
        name="muon",
        moments=_muon,
        elementwise=False,
        frameworks={
            "megatron": ("muon", "dist_muon", "adaptive_muon"),
            "deepspeed": ("Muon",),
            "maxtext": ("muon",),
        },
    ),
    Optimizer(  # with momentum
        name="sgd",
        moments=_per_element(1.0),
        elementwise=True,
        torch_class="SGD",
        frameworks={"megatron": ("sgd",), "deepspeed": ("SGD",), "maxtext": ("sgd",), "nanotron": ("sgd",)},
    ),
)
OPTIMIZERS: Mapping[OptimizerName, Optimizer] = {kind.name: kind for kind in _KINDS}
TWO_MOMENTS: tuple[OptimizerName, ...] = ("adamw", "muon")
"""Optimizers that keep a second moment, of all parameters or of some."""
