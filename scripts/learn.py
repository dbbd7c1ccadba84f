"""Write what the learner's section takes from Forescale's engine: `python scripts/learn.py`.

- src/forescale/web/static/learn/data.js: the memory formulas of the preset `playbook` as expressions, and the bytes per
  parameter of mixed-precision recipes. The pictures evaluate these expressions, so that they have no formulas of memory
  of their own.
- docs/learn/summary.md: the parallelism methods with the memory and time that the engine projects for each, and the
  formulas of the playbook with their values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import forescale as fs
from forescale.catalogue.clusters import load_device
from forescale.formula import REGISTRY, Term, as_term
from forescale.presets.playbook.preset import BytesPerParameter, Playbook, bytes_per_parameter
from forescale.projection.result import TIME_PARTS
from forescale.spec.workload import ComputeType, MasterType, StorageType
from forescale.units import GIB

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "forescale" / "web" / "static" / "learn" / "data.js"
SUMMARY = ROOT / "docs" / "learn" / "summary.md"
OPERATORS = ("+", "-", "×", "/")


# Formulas ----------------------------------------------------------------------------------------------------------


def expression(term: Term) -> Any:  # noqa: ANN401  (JSON)
    """Return a term as a number, a name, or [operator, first, second]; formulas are replaced by their bodies."""
    if term.inputs and term.name in REGISTRY:
        values = {key: expression(part) for key, part in term.inputs.items() if part.inputs}
        return _with(body(term), values)
    if term.name in OPERATORS:
        return [term.name, *(expression(part) for part in term.inputs.values())]
    if term.inputs:
        msg = f"the pictures have no operation {term.name!r}"
        raise ValueError(msg)
    return term.name or float(term.value)


def body(term: Term) -> Any:  # noqa: ANN401  (JSON)
    """Return the expression of a formula in the names of its inputs."""
    inputs = {key: as_term(part.value, name=key) for key, part in term.inputs.items()}
    return expression(REGISTRY[term.name].function(**inputs))


def _with(tree: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401  (JSON)
    if isinstance(tree, list):
        return [tree[0], *(_with(part, values) for part in tree[1:])]
    return values.get(tree, tree) if isinstance(tree, str) else tree


def formulas() -> dict[str, Any]:
    """Return the expressions of parameters, of one kind of states on a device, and of activations."""
    question = fs.ask("llama-3.1-8b", "h100-sxm", devices=8, seq_len=4096, global_batch_size=32, tp=2, pp=2)
    stage = Playbook().stages(question)[0]
    whole = as_term(stage.parameters).inputs["0"]  # / (tp × pp)
    return {
        "parameters": expression(whole),
        "state": body(as_term(stage.weights)),
        "activations": expression(as_term(stage.activations)),
    }


class Recipe(NamedTuple):
    """Number formats of a way to train; `moments` are those of both moments of Adam."""

    name: str
    compute: ComputeType
    weights: StorageType
    gradients: StorageType
    master: MasterType
    moments: tuple[StorageType, StorageType]


RECIPES = (
    Recipe("bf16, fp32 gradients", "bf16", "bf16", "fp32", "fp32", ("fp32", "fp32")),
    Recipe("bf16, bf16 gradients", "bf16", "bf16", "bf16", "fp32", ("fp32", "fp32")),
    Recipe("fp32", "fp32", "fp32", "fp32", "none", ("fp32", "fp32")),
    Recipe("Transformer Engine", "fp8", "fp32", "fp32", "none", ("fp32", "fp32")),
    Recipe("DeepSeek-V3", "fp8", "fp8", "bf16", "fp32", ("bf16", "bf16")),
    Recipe("FP8-LM O3", "fp8", "fp8", "fp8", "fp16", ("fp8", "fp16")),
    Recipe("nanotron FP8", "fp8", "fp8", "fp8", "bf16", ("fp8", "fp8")),
)


def counted(recipe: Recipe) -> BytesPerParameter:
    """Return the bytes per parameter of a recipe; two types of moments take the mean of both."""
    one, two = (
        bytes_per_parameter(
            fs.Precision(
                compute=recipe.compute,
                parameters=recipe.weights,
                gradients=recipe.gradients,
                master=recipe.master,
                moments=moments,
            )
        )
        for moments in recipe.moments
    )
    return BytesPerParameter(
        weights=one.weights,
        gradients=one.gradients,
        accumulated=one.accumulated,
        optimizer=(one.optimizer + two.optimizer) / 2.0,
    )


def data() -> str:
    """Return the text of data.js."""
    rows = []
    for recipe in RECIPES:
        item = counted(recipe)
        parts = ("weights", "gradients", "accumulated", "optimizer", "total")
        types = {"weights": recipe.weights, "gradients": recipe.gradients, "master": recipe.master}
        rows.append(
            {"name": recipe.name, "compute": recipe.compute, **{part: getattr(item, part) for part in parts}}
            | {"types": types | {"moments": " + ".join(recipe.moments)}}
        )
    lines = [f"  {key}: {json.dumps(value, ensure_ascii=False)}," for key, value in formulas().items()]
    shown = [f"  {json.dumps(row)}," for row in rows]
    head = "// Written by `python scripts/learn.py` from the formulas of the preset playbook.\n"
    return "\n".join(
        [f"{head}Learn.data.formulas = {{", *lines, "};", "Learn.data.recipes = [", *shown, "];", ""]
    )


# The summary -------------------------------------------------------------------------------------------------------

RUN: dict[str, Any] = {"devices": 32, "seq_len": 8192, "global_batch_size": 128, "micro_batch_size": 1}
DENSE, EXPERTS = "llama-3.1-8b", "qwen3-30b-a3b"
CLUSTER = "h100-sxm"


class Method(NamedTuple):
    """A row of the summary: a method, what it does in words, and a layout that uses it."""

    name: str
    saves: str
    dimension: str
    sends: str
    disadvantage: str
    layout: dict[str, Any]
    model: str = DENSE


METHODS = (
    Method("DP", "activations, by smaller micro-batches", "batch", "gradients, once per step",
           "all states on every device; limited by the largest useful batch", {"zero": 0}),
    Method("ZeRO-1", "optimizer states", "optimizer states", "gradients and new weights, once per step",
           "gradients and weights stay whole", {"zero": 1}),
    Method("ZeRO-2", "and gradients", "optimizer states, gradients", "as ZeRO-1, per micro-batch where gradients are not kept",
           "weights stay whole", {"zero": 2}),
    Method("ZeRO-3", "and weights", "optimizer states, gradients, weights", "weights of every layer, forward and backward",
           "gathers must hide behind compute: many tokens per device", {"zero": 3}),
    Method("TP + SP", "weights and activations within a layer", "hidden size; sequence in norms",
           "activations, 4 exchanges per layer", "exposed; needs the bandwidth of a node", {"tp": 8, "zero": 1}),
    Method("CP", "activations, with those of attention", "sequence", "keys and values, per layer",
           "states stay whole; chunks of a causal mask need balance", {"cp": 4, "zero": 1}),
    Method("PP", "weights and optimizer states", "layers", "activations between stages, per micro-batch",
           "bubble of (p − 1)/(v·m); activations of p micro-batches in flight", {"pp": 4, "zero": 1}),
    Method("EP", "weights of experts", "experts", "tokens to their experts and back, per layer",
           "uneven routing; attention and dense layers are not divided", {"ep": 8, "zero": 1}, EXPERTS),
)  # fmt: skip


def figures(method: Method) -> Sequence[str]:
    """Return the cells of a row of the table of projections."""
    projection = fs.project(method.model, CLUSTER, framework="none", **RUN, **method.layout)
    memory = max(projection.memory.stages, key=lambda stage: stage.peak_bytes)
    parts = ("weights", "gradients", "optimizer", "activations", "peak")
    gib = [f"{getattr(memory, f'{part}_bytes') / GIB:.1f}" for part in parts]
    layout = " ".join(f"{key} {value}" for key, value in method.layout.items())
    exposed = sum(projection.time_s[part] for part in TIME_PARTS if part.endswith("_comm"))
    waits = projection.time_s["bubble"]
    return (
        method.name,
        f"{method.model}, {layout}",
        *gib,
        f"{projection.step_time_s:.2f}",
        f"{exposed:.2f}",
        f"{waits:.2f}",
    )


PLAYBOOK_VALUES: dict[str, dict[str, float]] = {
    "playbook_parameters": {"hidden_size": 4096, "vocab_size": 128256, "num_layers": 32},
    "playbook_zero_bytes": {"parameters": 8e9, "whole": 8, "sharded": 12, "shards": 64},
    "playbook_activation_bytes": {"num_layers": 32, "seq_len": 4096, "batch": 1, "hidden_size": 4096, "num_heads": 32, "scores": 0},
    "playbook_ddp_ratio": {"dp": 64, "peak": 989e12, "tokens": 8192, "bandwidth": 200e9},
    "playbook_fsdp_ratio": {"dp": 64, "peak": 989e12, "tokens": 64 * 8192, "bandwidth": 200e9},
    "playbook_tp_ratio": {"tp": 8, "peak": 989e12, "hidden_size": 4096, "bandwidth": 225e9},
    "playbook_pp_ratio": {"num_layers": 8, "peak": 989e12, "hidden_size": 4096, "bandwidth": 25e9},
    "playbook_cp_ratio": {"cp": 8, "peak": 989e12, "hidden_size": 4096, "kv_width": 2048, "seq_len": 131072, "bandwidth": 225e9},
    "playbook_bubble_ratio": {"pp": 8, "vpp": 2, "num_microbatches": 32},
}  # fmt: skip
"""Inputs with which the cheat sheet shows each formula; bandwidth in elements of bf16 per second."""
TITLES = {
    "playbook_parameters": "parameters of a transformer",
    "playbook_zero_bytes": "states of a device",
    "playbook_activation_bytes": "activations",
    "playbook_ddp_ratio": "gradient all-reduce to backward",
    "playbook_fsdp_ratio": "ZeRO-3 gather to forward",
    "playbook_tp_ratio": "tensor-parallel gather to feed-forward",
    "playbook_pp_ratio": "send to the next stage's forward",
    "playbook_cp_ratio": "keys and values to a step of the ring",
    "playbook_bubble_ratio": "pipeline bubble to ideal time",
}


def sheet() -> list[str]:
    """Return the rows of the cheat sheet."""
    rows = []
    for name, values in PLAYBOOK_VALUES.items():
        entry = REGISTRY[name]
        text = entry.summary.partition(": ")[0].rstrip(".").partition(", per element")[0]
        result = entry.function(**{key: float(value) for key, value in values.items()})
        shown = ", ".join(
            f"{key} {value:,.0f}" if value < 1e6 else f"{key} {value:.3g}" for key, value in values.items()
        )
        size = {
            "byte": f"{result / GIB:.2f} GiB",
            "1": f"{result:.3g}" if result < 1e6 else f"{result:,.0f}",
        }[entry.unit]
        rows.append(
            f"| {TITLES[name]} | {text[0].lower() if text.startswith('Peak') else text[0]}{text[1:]} | {shown} | {size} |"
        )
    return rows


def summary() -> str:
    """Return docs/learn/summary.md."""
    words = [f"| {m.name} | {m.saves} | {m.dimension} | {m.sends} | {m.disadvantage} |" for m in METHODS]
    numbers = [f"| {' | '.join(figures(method))} |" for method in METHODS]
    devices = [f"| {' | '.join(facts(name))} |" for name in DEVICES]
    tables = [
        *HEAD,
        *words,
        "",
        *PROJECTED,
        *numbers,
        "",
        *SHEET,
        *sheet(),
        "",
        *TAIL,
        "",
        *OF_DEVICES,
        *devices,
    ]
    return "\n".join([*tables, ""])


DEVICES = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200", "mi300x", "mi355x")


def facts(name: str) -> Sequence[str]:
    """Return the cells of a row of the table of devices."""
    device = load_device(name)
    rate = device.matrix_flops.bf16
    assert rate is not None
    cells = (device.num_cores, device.clock_hz, device.l2_bytes)
    numbers = [
        "" if cell is None else f"{cell / scale:,.0f}"
        for cell, scale in zip(cells, (1, 1e6, 2**20), strict=True)
    ]
    ratio = f"{rate / device.hbm_bandwidth:,.0f}"
    return (
        name,
        *numbers,
        f"{device.hbm_bytes / GIB:.0f}",
        f"{device.hbm_bandwidth / 1e12:.2f}",
        f"{rate / 1e12:,.0f}",
        ratio,
    )


HEAD = """# Summary and cheat sheet

<!-- written by `python scripts/learn.py` -->

## The five dimensions

| method | saves | what is sharded | what is sent, how often | disadvantage |
|---|---|---|---|---|""".splitlines()
PROJECTED = f"""## The same in numbers

What Forescale projects for each method alone, {RUN["devices"]} devices of {CLUSTER}, {RUN["seq_len"]:,} tokens per sequence,
{RUN["global_batch_size"]} sequences per step, without recompute. Memory of the fullest device in GiB, times in seconds per
step. A layout whose peak exceeds 79.6 GiB does not fit; its time is that of the same layout with enough memory.

| method | model, layout | weights | gradients | optimizer | activations | peak | step | exposed messages | bubble |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|""".splitlines()
SHEET = """## Cheat sheet

Ratios compare a message with the compute that hides it; below 1 it is hidden. `peak` is in FLOP/s, `bandwidth` in elements
(not bytes) per second and device. The formulas are those of the preset [`playbook`](../presets.md#playbook).

| quantity | formula | with | value |
|---|---|---|--:|""".splitlines()
TAIL = """Rules that follow:

- Data parallelism first; ZeRO-1 costs nothing over it.
- Tensor parallelism within a node, at most as many ranks as key/value heads, or these are stored several times.
- Pipeline stages need several micro-batches each; with ZeRO-1 rather than ZeRO-3.
- Context parallelism for long sequences, with chunks in [zig-zag order](context.md).
- Recompute only what does not fit otherwise; selective recompute frees nothing where flash attention keeps no scores.
- The [decision tree](decisions.md) applies these rules, `forescale search` evaluates every layout.""".splitlines()

OF_DEVICES = """## Devices

Facts of the catalogue. The last column is the intensity above which compute, and below which memory is the limit.

| device | SMs or CUs | clock [MHz] | L2 [MiB] | memory [GiB] | bandwidth [TB/s] | bf16 [TFLOP/s] | FLOP per byte |
|---|--:|--:|--:|--:|--:|--:|--:|""".splitlines()


def main() -> None:
    """Write both files."""
    DATA.write_text(data(), encoding="utf-8")
    SUMMARY.parent.mkdir(exist_ok=True)
    SUMMARY.write_text(summary(), encoding="utf-8")


if __name__ == "__main__":
    main()
