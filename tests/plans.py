"""Random plans that a framework can run: what every writer's tests and oracles try.

`plans("megatron", 40)` are forty questions of dense models, of experts and of latent attention with all degrees, the
same for the same seed, legal under the framework's limits; half of them have more than one choice of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tests.layouts import cut, network

from forescale.catalogue.frameworks import load_framework
from forescale.errors import ForescaleError
from forescale.export import under
from forescale.frameworks.huggingface.reader import read_huggingface
from forescale.frameworks.huggingface.writer import config_of
from forescale.frameworks.writers import writer_of
from forescale.io.question import build_layout
from forescale.project import project
from forescale.question import Question, question_of
from forescale.spec import Layout, Model, Overlap, Precision, Recompute, Workload
from forescale.spec.framework import RULES, Framework
from forescale.spec.groups import group_of
from forescale.spec.model import MoeFfn
from forescale.spec.proposal import Proposal

Pick = Callable[[Sequence[Any]], Any]
DENSE = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-8b", "gpt2-xl", "mistral-7b")
EXPERTS = ("mixtral-8x7b", "qwen3-30b-a3b", "mixtral-8x22b")
LATENT = ("deepseek-v2-lite", "deepseek-v3", "moonlight-16b-a3b")
KINDS = (DENSE, EXPERTS, LATENT)
RECOMPUTE = (
    Recompute(),
    Recompute(),
    Recompute(granularity="full"),
    Recompute(granularity="full", num_layers=1),
    Recompute(granularity="selective", modules=("core_attn",)),
)
DEFAULTS = Layout()
MOST_DEVICES = 64


def plans(
    to: str,
    count: int,
    *,
    seed: int = 1,
    kinds: Sequence[Sequence[str]] = KINDS,
    cluster: str = "h100-sxm",
    where: Callable[[Layout], bool] = lambda _: True,
    **choices: Sequence[Any],
) -> list[Question]:
    """Return `count` plans for a framework whose layouts are as `where` says, as many of each of the `kinds` of models.

    `choices` are more values that fields of a layout may take, such as recompute=(...), beside the framework's limits.
    """
    pick = random.Random(f"{to} {seed}").choice
    return list(islice(_legal(load_framework(to), pick, kinds, cluster, where, choices), count))


def dense_first(question: Question) -> Question:
    """A plan whose dense layers lie before those of experts, as builders of DeepSeek's kind have them."""
    layers = sorted(question.model.layers, key=lambda layer: isinstance(layer.ffn, MoeFfn))
    return replace(question, model=replace(question.model, layers=tuple(layers)))


def drawn(to: str, count: int, *, seed: int = 1, **choices: Sequence[Any]) -> list[Question]:
    """Return plans as they are drawn: some of them no framework could run."""
    framework = load_framework(to)
    pick = random.Random(f"{to} {seed}").choice
    result = (_plan(framework, pick, KINDS[at % len(KINDS)], "h100-sxm", choices) for at in range(1_000_000))
    return list(islice((question for question in result if question is not None), count))


def _legal(
    framework: Framework,
    pick: Pick,
    kinds: Sequence[Sequence[str]],
    cluster: str,
    where: Callable[[Layout], bool],
    choices: dict[str, Sequence[Any]],
) -> Iterator[Question]:
    for at in range(1_000_000):
        question = _plan(framework, pick, kinds[at % len(kinds)], cluster, choices)
        if question is not None and where(question.layout) and _runs(question, framework):
            yield question


def _runs(question: Question, framework: Framework) -> bool:
    """Whether rules, writer and projection take a plan: the quickest to refuse it is asked first."""
    rules = framework.limits.rules if framework.limits is not None else {}
    proposal = Proposal(
        model=question.model, cluster=question.cluster, workload=question.workload, degrees=question.layout
    )
    if not all(RULES[name](proposal) for name in rules):
        return False
    try:
        writer_of(framework).write(question)
        project(question)
    except ForescaleError:
        return False
    return True


def _plan(
    framework: Framework, pick: Pick, names: Sequence[str], cluster: str, choices: dict[str, Sequence[Any]]
) -> Question | None:
    choices = {"compute": ("bf16", "bf16", "bf16", "fp8"), **choices}
    types = Precision(compute=pick(choices.pop("compute")))
    pp, vpp = pick((1, 1, 2, 4)), pick((1, 1, 2))
    model = cut(pick(names), pp * vpp * pick((1, 2, 3)) + pick((0, 0, 0, 1)))
    if framework.model_code and model.config:
        model = replace(model, config=configured(model))
    strategy = _layout(framework, pick, model, pp, vpp if pp > 1 else 1, choices)
    devices = strategy.num_devices
    if devices > MOST_DEVICES:
        return None
    rounds = pick((1, 2, 4))
    micro = strategy.micro_batch_size * strategy.dp * (group_of(strategy) or strategy.pp) * rounds
    __dataclass_fields__ = {
        name: getattr(strategy, name)
        for name in Layout.__dataclass_fields__
        if getattr(strategy, name) != getattr(DEFAULTS, name) and name not in ("dp_replicate", "dp_shard")
    }
    if strategy.dp_replicate > 1 < strategy.dp_shard:
        __dataclass_fields__["dp_replicate"] = strategy.dp_replicate
    try:
        layout = build_layout(_tables(__dataclass_fields__), devices, where="a plan")
        return under(
            question_of(
                model,
                network(cluster, devices),
                Workload(
                    seq_len=min(pick((2048, 4096, 8192)), model.learned_positions or 8192),
                    global_batch_size=micro,
                    precision=types,
                ),
                strategy=layout,
            ),
            framework,
        )
    except ForescaleError:
        return None


def configured(model: Model) -> str:
    """The keys that describe a cut model's operators; none where no configuration describes it."""
    try:
        return read_huggingface(config_of(model), name=model.name, where=model.name).model.config
    except ForescaleError:
        return ""


GROUPED = ("megatron-core", "megatron-bridge", "nemo", "primus")
"""Frameworks that support groups of micro-batches."""


def _layout(
    framework: Framework, pick: Pick, model: Model, pp: int, vpp: int, choices: dict[str, Sequence[Any]]
) -> Layout:
    tp, cp, dp = pick((1, 1, 2, 4)), pick((1, 1, 2, 4)), pick((1, 2, 4, 8))
    replicas = pick((1, 1, 2)) if dp > 1 else 1
    free = {
        "ep": (1, 2, 4, 8) if model.is_moe else (1,),
        "zero": (0, 1, 1, 2, 3),
        "sp": (True, True, False),
        "etp": (1, 1, tp) if model.is_moe else (1,),
        "vpp": (vpp,),
        "microbatch_group": (None, 2 * pp) if vpp > 1 and framework.name in GROUPED else (None,),
        "cp_kind": ("all_gather", "ring"),
        "recompute": RECOMPUTE,
        "micro_batch_size": (1, 1, 2),
        "axis_order": (("tp", "cp", "dp", "pp"),),
        "overlap": (Overlap(),),
        **choices,
    }
    limits = framework.limits
    for name, values in (limits.values if limits is not None else {}).items():
        others = limits.others.get(name, ()) if limits is not None else ()
        allowed = tuple(value for value in free.get(name, ()) if value in (*values, *others))
        if name in free:
            free[name] = allowed or values
    result = {name: pick(values) for name, values in free.items()}
    replicas = 1 if result["zero"] == 0 else replicas if result["zero"] == 3 else pick((1, 1, replicas))
    if pp == 1:
        result["schedule"] = None
    if result.get("schedule") is not None:
        result["microbatch_group"] = None
    return replace(DEFAULTS, tp=tp, cp=cp, pp=pp, dp_replicate=replicas, dp_shard=dp // replicas, **result)


def _tables(values: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict, is_dataclass

    return {name: asdict(value) if is_dataclass(value) else value for name, value in values.items()}
