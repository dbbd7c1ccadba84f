"""A question as torchtitan's files: TOML for 0.2, a Python job configuration for 0.3."""

from __future__ import annotations

from typing import Any, Final

from forescale.errors import SpecError
from forescale.frameworks.torchtitan.sizes import SCORES, Sized, flavor_of, sized
from forescale.frameworks.torchtitan.write_job import JOB, job_text
from forescale.frameworks.torchtitan.write_layout import (
    compile_words,
    parallelism,
    recompute_words,
    schedule_csv,
    training,
)
from forescale.frameworks.writing import PLACEHOLDER, Files, allocator, torchrun
from forescale.question import Question
from forescale.schedule.torch_csv import to_csv
from forescale.syntax import dump_toml

TOML, SIZES, CSV = "train.toml", "plan_model.py", "schedule.csv"
FLAVOR: Final = "plan"
ASSETS: Final = "assets/hf"
RELEASES: Final = ("0.2", "0.3")
NARROW: Final = {"fp8": ("float8", "quantize.linear.float8"), "mxfp8": ("mx", "quantize.linear.mx")}
TABLES: Final = {"qwen3": "qwen3_args", "deepseek_v3": "deepseekv3_args"}
"""Tables of flavors that a module of one's own may add to (0.2)."""


class TorchtitanWriter:
    """torchtitan's own files, by the release."""

    title: Final = "torchtitan job configuration, TOML (0.2) or Python (0.3)"
    frameworks: Final = ("torchtitan",)
    blind: Final = "what is written for torchtitan are its models of text"

    def write(self, question: Question) -> Files:
        """Return the files of the release; what its keys have no word for is left out."""
        assert question.framework is not None
        release, _, eager = question.framework.release.partition("-")
        if release not in RELEASES:
            msg = f"nothing is written for {question.framework.label}; give torchtitan@0.2 or torchtitan@0.3"
            raise SpecError(msg)
        flavor = flavor_of(question.model, release)
        own = sized(question.model, release) if flavor is None else None
        csv = schedule_csv(question)
        table = {} if csv is None else {CSV: to_csv(csv)}
        if release == "0.2":
            texts = _toml(question, flavor, own, table=bool(table), compiled=not eager)
            words = f"torchtitan.train --job.config_file {TOML}"
        else:
            texts = {JOB: job_text(question, flavor, own, CSV if table else "", compiled=not eager)}
            words = "torchtitan.train --module plan --config plan"
        return Files(
            texts={**texts, **table},
            main=next(iter(texts)),
            launch=f"{torchrun(question.cluster)} -m {words}",
            variables=allocator(question),
        )


def _toml(
    question: Question, flavor: tuple[str, str] | None, own: Sized | None, *, table: bool, compiled: bool
) -> dict[str, str]:
    """Return the file of 0.2, and the module that adds a flavor where torchtitan has none of these sizes."""
    name, known = flavor or (own.builder.module if own else "", FLAVOR)
    layout, run = parallelism(question, python=False), training(question, python=False)
    if table:
        layout |= {
            "pipeline_parallel_schedule": "_PipelineScheduleRuntime",
            "pipeline_parallel_schedule_csv": CSV,
        }
    model: dict[str, Any] = {"name": name, "flavor": known, "hf_assets_path": ASSETS}
    types = question.workload.precision
    kind, converter = NARROW.get(types.compute, ("", ""))
    if converter:
        experts = question.model.is_moe and question.layout.kernels.narrow_experts
        model["converters"] = [converter, *[f"quantize.grouped_mm.{kind}"] * experts]
    tables: dict[str, Any] = {
        "model": model,
        "training": {"dataset": "c4", **run},
        "parallelism": layout,
        "activation_checkpoint": recompute_words(question),
        "compile": compile_words(question, compiled=compiled, python=False),
    }
    if converter:
        experts_of = {"grouped_mm": {kind: {"fqns": ["experts"]}}} if len(model["converters"]) > 1 else {}
        tables["quantize"] = {"linear": {kind: {"filter_fqns": ["output"]}}, **experts_of}
    if question.layout.kernels.deterministic:
        tables["debug"] = {"deterministic": True}
    if own is not None:
        tables["experimental"] = {"custom_import": SIZES.removesuffix(".py")}
    text = dump_toml(tables)
    for line in (f'hf_assets_path = "{ASSETS}"', 'dataset = "c4"'):
        text = text.replace(line, f"{line}  # {PLACEHOLDER}")
    return {TOML: text} | ({} if own is None else {SIZES: _flavor(own)})


def _flavor(own: Sized) -> str:
    """Return a module that puts a flavor of these sizes into torchtitan's table (0.2)."""
    module, table = own.builder.module, TABLES[own.builder.module]
    words: dict[str, Any] = own.words(own.builder.words)
    if module == "qwen3":
        words |= {"qk_norm": own.kind.startswith("qwen3"), "moe_enabled": own.routed}
    lines = [f"    {word}={value!r}," for word, value in words.items()]
    if own.routed:
        inside = {"num_shared_experts": 0, **own.words(own.builder.inside)}
        inside["score_func"] = SCORES.get(own.kind, "softmax")
        lines += [
            "    moe_args=MoEArgs(",
            *(f"        {word}={value!r}," for word, value in inside.items()),
            "    ),",
        ]
    imports = [
        *["from torchtitan.models.moe import MoEArgs"] * own.routed,
        f"from torchtitan.models.{module} import {table}",
        f"from torchtitan.models.{module}.model.args import {own.builder.name}",
    ]
    return "\n".join([*imports, "", f'{table}["{FLAVOR}"] = {own.builder.name}(', *lines, ")", ""])
