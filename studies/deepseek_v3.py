"""Study of two published runs: DeepSeek-V3 and Llama 3 405B."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from charts import bar_chart, titled
from study import Output, Study, bounds
from winners import Winners

from forescale.face import ask, ask_search
from forescale.graph.ops import AttentionCore, Collective, Gemm, GroupedGemm, Primitive
from forescale.inputs import prepare
from forescale.memory.peak import PARTS
from forescale.project import project
from forescale.projection.result import Projection, StageMemory
from forescale.question import Question
from forescale.spec import phrases
from forescale.spec.framework import OWN, searched
from forescale.spec.space import Space
from forescale.units import GIB

Row = dict[str, Any]
Reshard: TypeAlias = Literal["always", "never", "default"]
RUN: Row = {
    "cluster": "h800-sxm",
    "devices": 2048,
    "seq_len": 4096,
    "global_batch_size": 15360,
    "framework": "deepseek",
}
LAYOUT: Row = {"pp": 16, "ep": 64}
"""DeepSeek-V3 Technical Report (arXiv:2412.19437), sections 3.1, 3.2 and 4.2; the rest is the framework's record."""
BALANCED = (3, *(4,) * 14, 2)
"""Layers of the stages where embedding, head and the prediction of further tokens stand in a layer's place each."""
HOURS_PER_TRILLION = 180e3
"""Device hours of a trillion tokens (section 1)."""
PROFILED: tuple[tuple[str, float], ...] = (
    ("attention core, forward", 1.24),
    ("attention core, backward", 4.25),
    ("dense products, forward, replay and input gradients", 4.71),
    ("grouped products, forward and input gradients", 5.73),
    ("weight gradients of all", 8.19),
    ("dispatch, forward", 4.35),
    ("combine, forward", 6.18),
    ("dispatch of gradients", 3.41),
    ("combine of gradients", 6.18),
)
"""Milliseconds of one MoE layer and micro-batch: kernels of deepseek-ai/profile-data @449602428, train.json, over its
four layers. Compute runs on 112 of 132 cores, messages on 20 beside it, and wait for other ranks."""
LAYER_MS = 128.5 / 4
"""A layer's forward of one micro-batch and backward of another together: the span of all compute in train.json."""
DEEPEP = {"dispatch": (51e9, 1.0 + 4.0 / 128.0), "combine": (50e9, 2.0)}
"""Bytes per second and device between nodes at EP 64, and bytes of a number: deepseek-ai/DeepEP @dd758ca,
docs/legacy.md, on H800 in the setting of DeepSeek-V3."""
NODES_A_TOKEN = 4.0
"""Nodes that a token is sent to (section 2.1.2, node-limited routing)."""
LLAMA: tuple[tuple[int, int, int, int, float, float], ...] = (
    (8192, 1, 8192, 2048, 430e12, 0.43),
    (16384, 1, 8192, 2048, 400e12, 0.41),
    (16384, 16, 131072, 128, 380e12, 0.38),
)
"""Devices, cp, sequence, batch, FLOP/s of a device, MFU: The Llama 3 Herd of Models (arXiv:2407.21783), table 4."""
DROPPED = (0, *(1,) * 126, 0)
"""One layer on each of 128 virtual stages but the first, which embeds, and the last, which has the head (3.3.2)."""


def published() -> Question:
    """Return DeepSeek-V3's question."""
    return ask("deepseek-v3", **RUN, **LAYOUT)


def kernels(question: Question) -> dict[str, float]:
    """Return milliseconds of one MoE layer and micro-batch, by the kinds of kernels of `PROFILED`."""
    names = dict.fromkeys((name for name, _ in PROFILED), 0.0)
    prepared = prepare(question)
    layer = prepared.priced.priced.layers[-1]
    for name, operator in layer.operators.items():
        again = "mla_up_proj" in operator.operator.modules
        for (primitive, seconds), phase in zip(operator.primitives, operator.passes, strict=True):
            kind = _kind(name, primitive, phase)
            if kind is not None:
                times = 2.0 if again and phase == "forward" else 1.0
                names[kind] += 1e3 * float(seconds) * times
    return names


def layer_ms(question: Question) -> float:
    """Return milliseconds of a MoE layer's forward and backward, with what is replayed and what does not hide."""
    prepared = prepare(question)
    seconds = prepared.inputs.seconds.layers[-1].replayed
    return 1e3 * float(sum((*seconds.forward_parts.values(), *seconds.backward_parts.values())))


def deepep_seconds(question: Question) -> dict[str, float]:
    """Return the seconds of dispatch and combine that DeepEP's bandwidths say."""
    sent = NODES_A_TOKEN * question.workload.seq_len * question.model.hidden_size
    return {name: sent * size / rate for name, (rate, size) in DEEPEP.items()}


def _kind(name: str, primitive: Primitive, phase: str) -> str | None:
    """Return which line of `PROFILED` a kernel counts for."""
    forward = phase == "forward"
    if isinstance(primitive, AttentionCore):
        return f"attention core, {'forward' if forward else 'backward'}"
    if isinstance(primitive, Gemm | GroupedGemm) and phase == "backward_weight":
        return "weight gradients of all"
    if isinstance(primitive, GroupedGemm):
        return "grouped products, forward and input gradients"
    if isinstance(primitive, Gemm):
        return "dense products, forward, replay and input gradients"
    if isinstance(primitive, Collective) and name in ("moe.dispatch", "moe.combine"):
        sends = (name == "moe.dispatch") == forward
        return f"{'dispatch' if sends else 'combine'}{', forward' if forward else ' of gradients'}"
    return None


def memory_rows() -> Iterator[Row]:
    """Yield the parts of every rank's memory."""
    for stage in project(published()).memory.stages:
        for part in PARTS:
            yield {"rank": stage.stage, "GiB": getattr(stage, f"{part}_bytes") / GIB, "part": part}


def kernel_rows() -> Iterator[Row]:
    """Yield kernels as published and as projected."""
    ours = kernels(published())
    for name, milliseconds in PROFILED:
        yield {"kernels": name, "ms": milliseconds, "of": "profile"}
        yield {"kernels": name, "ms": ours[name], "of": "projected"}


def step_rows() -> Iterator[Row]:
    """Yield the parts of the step."""
    for part, seconds in project(published()).time_s.items():
        yield {"part": part, "seconds": seconds, "run": "projected"}


TITLES = {
    "memory": "DeepSeek-V3: memory by pipeline rank",
    "kernels": "DeepSeek-V3: kernels of a layer, published and projected",
    "step": "Where a step goes",
}
PICTURES: dict[str, tuple[Callable[[], Iterator[Row]], dict[str, Any]]] = {
    "memory": (memory_rows, {"x": "rank", "y": "GiB", "colour": "part", "stacked": True}),
    "kernels": (kernel_rows, {"x": "ms", "y": "kernels", "colour": "of", "stacked": False}),
    "step": (step_rows, {"x": "seconds", "y": "part", "colour": "run", "stacked": False}),
}
"""Rows and axes by file."""


def published_step() -> float:
    """Return the seconds of a published step."""
    return HOURS_PER_TRILLION * 3600.0 * published().workload.tokens_per_step / 1e12 / 2048


def balanced() -> Projection:
    """Return the projection where both ends of the model stand in the place of layers."""
    return project(ask("deepseek-v3", **RUN, **LAYOUT, stage_layers=BALANCED))


def without(question: Question, change: Mapping[str, Any]) -> Question:
    """Return a question with fields of its precision or of its kernels changed."""
    layout, work = question.layout, question.workload
    if "parameters" in change:
        return replace(question, workload=replace(work, precision=replace(work.precision, **change)))
    return question.with_layout(replace(layout, kernels=replace(layout.kernels, **change)))


def middle(question: Question) -> float:
    """Return the peak bytes of the rank that needs the least: one in the middle of the pipeline."""
    return min(stage.peak_bytes for stage in project(question).memory.stages)


def deepseek_table() -> str:
    """Return DeepSeek-V3 as published beside what is projected."""
    question = published()
    result = project(question)
    memory = result.memory
    lines = [
        "| | published | projected |",
        "|---|---:|---:|",
        f"| step | {published_step():.2f} s | {result.step_time_s:.2f} s |",
        f"| step, ends in the place of layers | | {balanced().step_time_s:.2f} s |",
        f"| memory of the fullest rank | at most 80 GB | {memory.peak_bytes / GIB:.1f} of "
        f"{memory.capacity_bytes / GIB:.1f} GiB |",
    ]
    ours = kernels(question)
    lines += [f"| {name} | {value:.2f} ms | {ours[name]:.2f} ms |" for name, value in PROFILED]
    for name, alone in deepep_seconds(question).items():
        lines.append(
            f"| {name} by DeepEP's own table | {1e3 * alone:.2f} ms | {ours[f'{name}, forward']:.2f} ms |"
        )
    lines.append(f"| a layer, forward and backward | {LAYER_MS:.1f} ms | {layer_ms(question):.1f} ms |")
    return "\n".join(lines)


def llama(devices: int, cp: int, seq_len: int, batch: int, reshard: Reshard = "default") -> Question:
    """Return the question of one line of `LLAMA`."""
    return ask(
        "llama-3.1-405b",
        "h100-sxm",
        framework="none",
        devices=devices,
        seq_len=seq_len,
        global_batch_size=batch,
        tp=8,
        cp=cp,
        pp=16,
        vpp=8,
        zero=2,
        stage_layers=DROPPED,
        reshard=reshard,
    )


def fullest(reshard: Reshard) -> StageMemory:
    """Return the fullest device of Llama 3 405B."""
    stages = project(llama(*LLAMA[0][:4], reshard=reshard)).memory.stages
    return max(stages, key=lambda stage: stage.peak_bytes)


def llama_memory() -> str:
    """Return the fullest device of Llama 3 405B where gradients wait for the last backward, and where none does."""
    lines = ["| gradients | of 80 GiB | activations |", "|---|---:|---:|"]
    named: tuple[tuple[str, Reshard], ...] = (
        ("whole until a stage's last backward", "default"),
        ("reduced as they come", "always"),
    )
    for name, reshard in named:
        most = fullest(reshard)
        lines.append(f"| {name} | {most.peak_bytes / GIB:.0f} | {most.activations_bytes / GIB:.0f} |")
    return "\n".join(lines)


def llama_rates() -> list[tuple[float, float]]:
    """Return projected FLOP/s of a device, and MFU, of each line of `LLAMA`."""
    llamas = [llama(devices, cp, seq_len, batch) for devices, cp, seq_len, batch, _, _ in LLAMA]
    result = [(project(item).mfu, item.cluster.device.matrix_flops.bf16 or 0.0) for item in llamas]
    return [(mfu * peak, mfu) for mfu, peak in result]


def llama_table() -> str:
    """Return Llama 3 405B as published beside what is projected."""
    lines = [
        "| devices | cp | tokens | TFLOP/s, published | projected | MFU, published | projected | error of the step |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for (devices, cp, seq_len, _, rate, mfu), (ours, projected) in zip(LLAMA, llama_rates(), strict=True):
        lines.append(
            f"| {devices:,} | {cp} | {seq_len:,} | {rate / 1e12:.0f} | {ours / 1e12:.0f} | {mfu:.0%} | "
            f"{projected:.1%} | {rate / ours - 1.0:+.1%} |"
        )
    return "\n".join(lines)


def searches(winners: Winners) -> tuple[Sequence[Projection], Sequence[Projection]]:
    """Return the best layouts among those of DeepSeek's stack, and among all."""
    question = ask_search("deepseek-v3", **RUN)
    assert question.framework is not None
    local = replace(question, space=searched(question.framework, question.space, limited=True))
    limits = question.framework.limits
    assert limits is not None
    usual = {name: getattr(Space(), name) for name in limits.values.keys() - {*OWN}}
    free = question.with_space(**usual, rules=())
    return winners.best("DeepSeek's stack", local, top=5), winners.best("any layout", free, top=5)


def search_table(projections: Mapping[str, Sequence[Projection]]) -> str:
    """Return the layouts that searches find."""
    lines = ["| among | layout | step | GiB | |", "|---|---|---:|---:|---|"]
    for space, best in projections.items():
        for one in best:
            memory = f"{one.memory.peak_bytes / GIB:.1f} | {one.memory.verdict}"
            lines.append(f"| {space} | {phrases.layout(one.strategy)} | {one.step_time_s:.2f} s | {memory} |")
    return "\n".join(lines)


def deepseek_figures() -> dict[str, object]:
    """Return what the page says of DeepSeek-V3."""
    question = published()
    result = project(question)
    ours, alone, measured = kernels(question), deepep_seconds(question), dict(PROFILED)
    *others, last, most = sorted(stage.peak_bytes / GIB for stage in result.memory.stages)
    return {
        "step": result,
        "published_step": published_step(),
        "step_error": result.step_time_s / published_step() - 1.0,
        "balanced": balanced(),
        "layer": layer_ms(question),
        "kernels": {name.split(",")[0]: ours[name] for name in measured},
        "profiled": {name.split(",")[0]: value for name, value in measured.items()},
        "alone": {name: 1e3 * seconds for name, seconds in alone.items()},
        "ends": bounds((last, most)),
        "others": bounds(others),
        "ranks": bounds((*others, last, most)),
        "capacity": result.memory.capacity_bytes / GIB,
        "savings": savings(),
    }


SAVINGS: dict[str, Mapping[str, Any]] = {
    "weights in fp8 alone (`fp8_parameters`)": {"parameters": "bf16"},
    "inputs of SwiGLU in fp8 (`narrow_activation_inputs`)": {"narrow_activation_inputs": False},
    "output of attention in 12 bits (`narrow_core_output`)": {"narrow_core_output": False},
}
"""Settings of the record that save memory, and what replaces each: a field of the precision or of the kernels."""


def savings() -> str:
    """Return what settings of the record save on a middle rank, as rows."""
    question = published()
    with_all = middle(question)
    lines = []
    for name, change in SAVINGS.items():
        other = middle(without(question, change))
        lines.append(f"| {name} | {(other - with_all) / GIB:.1f} |")
    return "\n".join(lines)


def llama_figures() -> dict[str, object]:
    """Return what the page says of Llama 3 405B."""
    rows = [
        f"| {devices:,} | {cp} | {seq_len:,} | {rate / 1e12:.0f} TFLOP/s, {mfu:.0%} | {ours / 1e12:.0f} TFLOP/s, "
        f"{projected:.1%} | {rate / ours - 1.0:+.1%} |".replace("%", " %").replace("-", "−")
        for (devices, cp, seq_len, batch, rate, mfu), (ours, projected) in zip(
            LLAMA, llama_rates(), strict=True
        )
    ]
    whole, reduced = (fullest("default"), fullest("always"))
    return {
        "llama_rows": "\n".join(rows),
        "whole_gib": whole.peak_bytes / GIB,
        "reduced_gib": reduced.peak_bytes / GIB,
        "llama_activations": bounds((whole.activations_bytes / GIB, reduced.activations_bytes / GIB)),
    }


def output(winners: Winners) -> Output:
    """Return tables, pictures and figures."""
    stack, free = searches(winners)
    parts = [
        "# Two published runs",
        "Written by `studies/deepseek_v3.py`.",
        "## DeepSeek-V3",
        deepseek_table(),
        "## Llama 3 405B",
        llama_table(),
        "## Its memory",
        llama_memory(),
        "## What a search finds for DeepSeek-V3",
        search_table({"DeepSeek's stack": stack, "any layout": free}),
    ]
    first, other = stack[0], free[0]
    local = min(stack, key=lambda one: (not _as_published(one), one.step_time_s))
    figures = {
        "stack_best": first,
        "stack_words": phrases.layout(first.strategy),
        "stack_gib": first.memory.peak_bytes / GIB,
        "own": local,
        "own_words": phrases.layout(local.strategy),
        "own_gib": local.memory.peak_bytes / GIB,
        "own_loss": local.step_time_s / first.step_time_s - 1.0,
        "free_best": other,
        "free_words": phrases.layout(other.strategy),
        "free_gain": 1.0 - other.step_time_s / first.step_time_s,
    }
    return Output(
        tables={"tables.md": "\n\n".join(parts) + "\n"},
        charts={
            name: titled(bar_chart(list(rows()), **axes), TITLES[name])
            for name, (rows, axes) in PICTURES.items()
        },
        figures={**deepseek_figures(), **llama_figures(), **figures},
        claims=claims(first, local, other),
    )


def _as_published(one: Projection) -> bool:
    """Return whether a layout has the degrees, ZeRO stage and schedule that DeepSeek published."""
    return all(
        getattr(one.strategy, name) == getattr(published().layout, name)
        for name in ("pp", "ep", "zero", "schedule")
    )


def claims(stack: Projection, projection: Projection, free: Projection) -> dict[str, bool]:
    """Return which statements of the page hold."""
    most = sorted(project(published()).memory.stages, key=lambda stage: -stage.peak_bytes)[:2]
    return {
        "The published degrees are among the five fastest": _as_published(projection),
        "layouts without a pipeline are faster": free.strategy.pp == 1 < stack.strategy.pp,
        "The fullest ranks are the two that have both ends of the model": {stage.stage for stage in most}
        == {0, 15},
    }


STUDY = Study(name="deepseek-v3", output=output)
