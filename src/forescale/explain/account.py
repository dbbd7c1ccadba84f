"""What a published account says of one layout, as a tree: its totals, its parts, and what formulas made them of."""

from __future__ import annotations

from collections.abc import Mapping

from forescale.errors import SpecError, UnknownNameError
from forescale.explain.tidy import tidy
from forescale.formula import Term, TermNode, as_term, number_of
from forescale.numeric import Numeric
from forescale.presets import ACCOUNTS, TIMED, project_as
from forescale.presets.preset import StageBytes
from forescale.projection.result import MEMORY_PARTS, Projection, StageMemory
from forescale.question import Question
from forescale.units import counted

NOTHING = 1e-12
"""Share of a total below which a part is a remainder of rounding."""
RATES = {
    "mfu": "model_flops",
    "mfu_full_attention": "model_flops_full_attention",
    "hfu": "hardware_flops",
}
"""Shares of the peak rate that an account takes, by the FLOP that they count."""


def explain_account(question: Question, quantity: str, stage: int | None) -> TermNode:
    """Return `quantity` of one layout by the preset of the question; of memory that of a stage, the fullest by default.

    Raises
    ------
    UnknownNameError
        If the account states no such quantity; it names the nearest ones.
    SpecError
        If the layout is none that the account knows, or has no such stage, or the quantity none at all.
    """
    told = project_as(question)
    account = next(each for each in ACCOUNTS if each.name == told.preset)
    rank = _rank(told, stage)
    memory = _memory(rank, account.stages(question)[rank.stage], account.source)
    made = next((each.seconds(question) for each in TIMED if each.name == told.preset), {})
    known = {**memory, **_time(told, {**told.time_s, **made}, account.source), **_counts(told)}
    if quantity not in known:
        raise UnknownNameError(f"quantity of preset {told.preset}", quantity, known)
    if stage is not None and not quantity.startswith("memory."):
        raise SpecError(
            f"a stage goes with memory and its parts (memory.activations, ...), not with {quantity}"
        )
    return tidy(known[quantity].renamed(quantity).at())


def _rank(told: Projection, stage: int | None) -> StageMemory:
    stages = told.memory.stages
    if stage is None:
        return max(stages, key=lambda each: each.peak_bytes)
    if not 0 <= stage < len(stages):
        ranks = f"the pipeline's {counted(len(stages), 'stage')}, 0 to {len(stages) - 1}"
        raise SpecError(f"stage {stage} is none of {ranks}")
    return stages[stage]


def _memory(rank: StageMemory, made: StageBytes, source: str) -> dict[str, Term]:
    parts = {name: getattr(made, name) for name in MEMORY_PARTS}
    whole = f"sum of the account's parts, stage {rank.stage}"
    return _of_parts("memory.peak", "memory", parts, rank.peak_bytes, "byte", whole, source)


def _time(told: Projection, parts: Mapping[str, Numeric], source: str) -> dict[str, Term]:
    """Return what follows from the step's time and its `parts`; nothing where the account states none."""
    seconds = told.step_time.expected
    if not seconds:
        return {}
    found = _of_parts("step_time", "step_time", parts, seconds, "s", "a step of the account's parts", source)
    for share, work in RATES.items():
        flops = Term(getattr(told, f"{work}_per_step"), name=work, unit="FLOP")
        inputs = {work: flops, "step_time": found["step_time"]}
        text = "FLOP / (step time × devices × the account's peak rate)"
        found |= {
            work: flops,
            share: Term(getattr(told, share), name=share, unit="1", text=text, inputs=inputs),
        }
    inputs = {
        "tokens": Term(float(told.workload.tokens_per_step), name="tokens", unit="token"),
        "step_time": found["step_time"],
        "num_devices": Term(float(told.cluster.num_devices), name="num_devices", unit="1"),
    }
    name, text = "tokens_per_s_per_device", "tokens / (step time × devices)"
    return found | {name: Term(getattr(told, name), name=name, unit="token/s", text=text, inputs=inputs)}


def _of_parts(
    whole: str, family: str, parts: Mapping[str, Numeric], value: float, unit: str, text: str, source: str
) -> dict[str, Term]:
    """Return a total and its parts by their names as quantities; the total is made of those that are not nothing."""
    terms = {name: as_term(part, source=source).renamed(name, unit=unit) for name, part in parts.items()}
    said = {name: term for name, term in terms.items() if abs(number_of(term)) > NOTHING * value}
    total = Term(value, name=whole, unit=unit, source=source, text=text, inputs=said)
    return {whole: total, **{f"{family}.{name}": term for name, term in terms.items()}}


def _counts(told: Projection) -> dict[str, Term]:
    counts = {
        name: float(getattr(told.params, name)) for name in ("total", "active", "trained", "per_device_max")
    }
    source = told.model.source
    named = {
        f"params.{name}": Term(count, name=name, unit="parameter", source=source)
        for name, count in counts.items()
    }
    name = "num_microbatches"
    return named | {name: Term(float(told.num_microbatches), name=name, unit="1")}
