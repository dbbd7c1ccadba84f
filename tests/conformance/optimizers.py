"""What every optimizer must pass: it keeps the states of one that is run.

`ORACLES` has every optimizer as PyTorch has it, or as its paper states it. A new optimizer adds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain

import pytest
import torch
from msgspec.structs import replace
from tests import small
from torch import Tensor

from forescale.errors import ForescaleError
from forescale.explain.explain import explain
from forescale.export import export
from forescale.frameworks.writers import WRITERS
from forescale.graph.operator import Parameter
from forescale.memory.states import moments_per_parameter
from forescale.question import question_of
from forescale.spec.layout import Layout
from forescale.spec.optimizers import OPTIMIZERS, Optimizer
from forescale.spec.workload import Trainable

ROWS, COLUMNS, EXPERTS = 6, 8, 2
WEIGHTS = (
    Parameter(name="ffn.up.weight", elements=ROWS * COLUMNS, local_elements=1.0, shape=(ROWS, COLUMNS)),
    Parameter(
        name="moe.up.weight",
        elements=EXPERTS * ROWS * COLUMNS,
        local_elements=1.0,
        shape=(EXPERTS, ROWS, COLUMNS),
    ),
    Parameter(name="embedding.weight", elements=ROWS * COLUMNS, local_elements=1.0, shape=(ROWS, COLUMNS)),
    Parameter(name="ffn.norm.weight", elements=COLUMNS, local_elements=1.0, shape=(COLUMNS,), matrix=False),
)
"""A hidden matrix, experts, an embedding and a norm."""


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, arXiv:2302.06675, Algorithm 2."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.1, "betas": (0.9, 0.99)})

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update by the sign of the momentum."""
        for group in self.param_groups:
            for param in group["params"]:
                momentum = self.state[param].setdefault("momentum", torch.zeros_like(param))
                first, second = group["betas"]
                param.data -= group["lr"] * torch.sign(first * momentum + (1.0 - first) * param.grad)
                momentum.mul_(second).add_(param.grad, alpha=1.0 - second)


def _muon(hidden: bool) -> Callable[[list[Tensor]], torch.optim.Optimizer]:
    return torch.optim.Muon if hidden else torch.optim.AdamW


ORACLES: Mapping[str, Callable[[str], Callable[[list[Tensor]], torch.optim.Optimizer]]] = {
    "adamw": lambda _: torch.optim.AdamW,
    "adafactor": lambda _: torch.optim.Adafactor,
    "adagrad": lambda _: torch.optim.Adagrad,
    "lion": lambda _: Lion,
    "muon": lambda name: _muon(not name.startswith("embedding") and "norm" not in name),
    "sgd": lambda _: lambda weights: torch.optim.SGD(weights, momentum=0.9),
}
"""Optimizer of a parameter by its name."""


def check_optimizer(kind: Optimizer, oracles: Mapping[str, Callable[..., object]] = ORACLES) -> None:
    """Fail with an AssertionError where an optimizer breaks a rule.

    Of every parameter it must keep as many elements as the optimizer that runs; it is elementwise exactly if halves of a
    matrix are updated as the whole is; its memory grows with them and is explained; frameworks that have a name for it
    write it, and others say that they do not.
    """
    assert kind.name in oracles, f"{kind.name} has no oracle"
    for weight in WEIGHTS:
        kept = _kept(oracles[kind.name], weight)
        assert kind.moments(weight) == pytest.approx(kept), (
            f"{kind.name} keeps {kept} elements of {weight.name}"
        )
    assert _is_elementwise(oracles[kind.name]) == kind.elementwise, "elementwise"
    _check_memory(kind)
    _check_names(kind)
    _check_writers(kind)


def _kept(oracle: Callable[..., object], weight: Parameter) -> int:
    """Return the elements of all states after a step; every expert is a matrix of its own."""
    shape = tuple(map(int, weight.shape))
    matrices = [torch.ones(shape[-2:]) for _ in range(shape[0])] if len(shape) == 3 else [torch.ones(shape)]
    stepped = _stepped(oracle, weight.name, matrices)
    states = chain.from_iterable(state.values() for state in stepped.state.values())
    return sum(state.numel() for state in states if isinstance(state, Tensor) and state.dim())


def _stepped(oracle: Callable[..., object], name: str, weights: list[Tensor]) -> torch.optim.Optimizer:
    for weight in weights:
        weight.requires_grad_()
        weight.grad = (
            torch.arange(1.0, weight.numel() + 1.0).reshape(weight.shape).sin() + weight.shape[0] * 0.0
        )
    optimizer: torch.optim.Optimizer = oracle(name)(weights)  # type: ignore[operator]
    optimizer.step()
    return optimizer


def _is_elementwise(oracle: Callable[..., object]) -> bool:
    """Whether the upper half of a matrix is updated in the same way without the lower one."""
    whole, half = torch.ones(ROWS, COLUMNS), torch.ones(ROWS // 2, COLUMNS)
    _stepped(oracle, "ffn.up.weight", [whole])
    _stepped(oracle, "ffn.up.weight", [half])
    return bool(torch.allclose(whole[: ROWS // 2], half, rtol=1e-6, atol=1e-9))


def _question(kind: Optimizer):
    run = replace(small.workload(), optimizer=kind.name)
    return question_of(small.dense(2), small.cluster(8), run, strategy=Layout(dp_shard=8, zero=1))


def _check_memory(kind: Optimizer) -> None:
    question = _question(kind)
    moments = moments_per_parameter(question.model, kind.name, Trainable()).dense
    ours, least = (explain(_question(item), "memory.optimizer").value for item in (kind, OPTIMIZERS["sgd"]))
    assert (ours - least) == pytest.approx(
        ours * (moments - 1.0) / (moments + 1.0), rel=1e-6
    )  # fp32 master and moments


def _check_names(kind: Optimizer) -> None:
    for framework, names in kind.frameworks.items():
        others = (
            item.frameworks.get(framework, ()) for item in OPTIMIZERS.values() if item.name != kind.name
        )
        assert not set(names) & set(chain.from_iterable(others)), (
            f"{framework} has one name for two optimizers"
        )


def _check_writers(kind: Optimizer) -> None:
    for framework in (writer.frameworks[0] for writer in WRITERS):
        try:
            result = export(_question(kind), framework)
        except ForescaleError:
            continue
        same = result.read_back.workload.optimizer == kind.name
        assert same or any(item.word.endswith("optimizer") for item in result.unsaid), framework
