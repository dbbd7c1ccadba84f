"""`explain`: evaluate one layout with every degree recorded, and return the tree behind one quantity.

The functions are those that search and `project` use, so the root of the tree is the projected number itself. The tree
is then tidied: sums and products flat, choices made visible, and only what adds no information dropped: zeros in sums,
ones in products, the inputs of branches that were not taken. No number changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec.structs import replace

from forescale.arrays import np
from forescale.errors import UnknownNameError, not_one_of, out_of_range, required_with
from forescale.evaluate import Evaluation, evaluate
from forescale.formula import ARITHMETIC, OPERATIONS, Term, TermNode, as_term, number_of, total, value_of
from forescale.goodput.operations import checkpoint_of
from forescale.graph.counts import (
    EVERYTHING,
    CountKind,
    count_parameters,
    count_saved,
    count_trained,
    own_parameters,
    share_of,
)
from forescale.graph.stages import Picker
from forescale.inputs import prepare
from forescale.memory.peak import MemoryParts
from forescale.numeric import Numeric
from forescale.presets import preset_of, project_as
from forescale.presets.preset import StageBytes
from forescale.project import flops_of, parts_of_flops, peak_rate
from forescale.projection.result import (
    MEMORY_PARTS,
    TIME_PARTS,
    Projection,
    StageMemory,
    days,
    tokens_per_device_second,
    utilisation,
)
from forescale.question import Question
from forescale.spec.model import Model
from forescale.spec.workload import Trainable
from forescale.struct import Struct
from forescale.time.outer import STREAMING, step_over_sites, utilisation_of, waited_for_sites
from forescale.units import counted, format_quantity

Inputs: TypeAlias = tuple[tuple[str, TermNode], ...]
UNITS = {
    "bytes": "byte",
    "_s": "s",
    "seconds": "s",
    "latency": "s",
    "flops": "FLOP",
    "bandwidth": "byte/s",
    "rate": "FLOP/s",
}
"""Unit of an input by the end of its name, where nothing else says it."""


def tidy(node: TermNode) -> TermNode:
    """Return the same explanation without what only the machine needs."""
    return _tidy(node, "", {})


def is_operation(node: TermNode) -> bool:
    """Return whether the node is plain arithmetic, not a named quantity."""
    return node.name in ARITHMETIC


def operation_of(node: TermNode) -> str:
    """Return "+", "-", "×" or "/" where the node is that of its inputs, whatever its name; else ""."""
    return OPERATIONS.get(node.text, "")


def is_constant(node: TermNode) -> bool:
    """Return whether the node is a number without a name."""
    return not node.inputs and not node.name


def _tidy(node: TermNode, label: str, seen: dict[int, tuple[TermNode, TermNode]]) -> TermNode:
    """Tidy bottom-up; `seen` keeps the original beside the result, so that its id stays its own."""
    if id(node) not in seen:
        seen[id(node)] = (node, _rebuilt(node, label, seen))
    return seen[id(node)][1]


def _rebuilt(node: TermNode, label: str, seen: dict[int, tuple[TermNode, TermNode]]) -> TermNode:
    if not node.inputs or _is(node.value, 0.0):
        return replace(node, inputs=(), unit=node.unit or _unit_of_label(label))
    inputs: Inputs = tuple((name, _tidy(part, name, seen)) for name, part in node.inputs)
    operation = operation_of(node)
    if operation == "+":
        inputs = _spliced(inputs, "+", neutral=0.0)
    elif operation == "×":
        inputs = _spliced(inputs, "×", neutral=1.0)
    elif operation == "/":
        inputs = inputs[:1] if _is(inputs[1][1].value, 1.0) else inputs
    elif operation == "-":
        inputs = inputs[:1] if _is(inputs[1][1].value, 0.0) else inputs
    else:
        inputs = _chosen(node, inputs)
    alone = len(inputs) == 1 and operation and inputs[0][1].value == node.value
    if alone and (inputs[0][0].isdigit() or node.name == operation):  # a labelled part keeps its label
        return inputs[0][1] if is_operation(node) else _adopted(node, inputs[0][1])
    unit = node.unit or _unit(node, inputs) or _unit_of_label(label)
    if operation in {"+", "-"}:
        inputs = tuple((name, part if part.unit else replace(part, unit=unit)) for name, part in inputs)
    return replace(node, inputs=inputs, unit=unit)


def _adopted(node: TermNode, only: TermNode) -> TermNode:
    """Return a named sum or product of one thing: that thing under the name."""
    kept = only.text or node.text
    return replace(
        only, name=node.name, unit=node.unit or only.unit, text=kept, source=node.source or only.source
    )


def _spliced(inputs: Inputs, operation: str, *, neutral: float) -> Inputs:
    """Return the operands of nested sums (or products) side by side, without zeros (or ones)."""
    flat: list[tuple[str, TermNode]] = []
    for label, part in inputs:
        if part.name == operation and part.inputs and label.isdigit():  # a labelled part keeps its label
            flat.extend(part.inputs)
        elif not _is(part.value, neutral):
            flat.append((label, part))
    return tuple(flat)


def _chosen(node: TermNode, inputs: Inputs) -> Inputs:
    """Where a node is one of its inputs, leave the others their value only."""
    if node.unit == "1":  # counts are equal by chance
        return inputs
    winners = [part.value == node.value for _, part in inputs]
    if len(inputs) < 2 or not any(winners) or sum(winners) == len(winners):
        return inputs
    return tuple(
        (label, part if wins else replace(part, inputs=()))
        for wins, (label, part) in zip(winners, inputs, strict=True)
    )


def _unit(node: TermNode, inputs: Inputs) -> str:
    """Return the unit that arithmetic leaves: that of the summands, or of the one factor that has one."""
    units = [part.unit for _, part in inputs]
    operation = operation_of(node) or node.name
    if operation in {"+", "-", "max", "min"}:
        return next((unit for unit in units if unit), "")
    if operation == "×":
        kinds = {unit for unit in units if unit not in {"", "1"}}
        return kinds.pop() if len(kinds) == 1 and kinds <= {"s", "byte"} else ""
    if operation == "/" and len(units) == 2 and units[1] == "1":
        return units[0]
    return ""


def _unit_of_label(label: str) -> str:
    return next((unit for ending, unit in UNITS.items() if label.endswith(ending)), "")


def _is(value: object, number: float) -> bool:
    return value == number or (isinstance(value, tuple) and all(item == number for item in value))


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
    known = _account(question, stage)
    if quantity not in known:
        raise UnknownNameError(f"quantity of preset {question.preset}", quantity, known)
    if stage is not None and not quantity.startswith("memory."):
        raise required_with("memory or one of its parts (memory.activations, ...)", "a stage", quantity)
    return tidy(known[quantity].renamed(quantity).at())


def _account(question: Question, stage: int | None) -> dict[str, Term]:
    """Return all quantities that a preset has of one layout, by name."""
    explicit, account = project_as(question), preset_of(question)
    rank = _rank(explicit, stage)
    memory = _memory(rank, account.stages(question)[rank.stage], account.source)
    made = account.seconds(question) if account.defines("seconds") else {}
    others = account.quantities(question) if account.defines("quantities") else {}
    return {
        **memory,
        **_time(explicit, {**explicit.time_s, **made}, account.source),
        **_counts(explicit),
        **{name: as_term(value, source=account.source) for name, value in others.items()},
    }


def _rank(projection: Projection, stage: int | None) -> StageMemory:
    stages = projection.memory.stages
    if stage is None:
        return max(stages, key=lambda item: item.peak_bytes)
    if not 0 <= stage < len(stages):
        ranks = f"the pipeline's {counted(len(stages), 'stage')}, 0 to {len(stages) - 1}"
        raise not_one_of("stage", stage, ranks)
    return stages[stage]


def _memory(rank: StageMemory, made: StageBytes, source: str) -> dict[str, Term]:
    parts = {name: getattr(made, name) for name in MEMORY_PARTS}
    whole = f"sum of the account's parts, stage {rank.stage}"
    return _of_parts("memory.peak", "memory", parts, rank.peak_bytes, "byte", whole, source)


def _time(projection: Projection, parts: Mapping[str, Numeric], source: str) -> dict[str, Term]:
    """Return what follows from the step's time and its `parts`; nothing where the account states none."""
    seconds = projection.step_time.expected
    if not seconds:
        return {}
    of_parts = _of_parts(
        "step_time", "step_time", parts, seconds, "s", "a step of the account's parts", source
    )
    for share, work in RATES.items():
        flops = Term(getattr(projection, f"{work}_per_step"), name=work, unit="FLOP")
        inputs = {work: flops, "step_time": of_parts["step_time"]}
        text = "FLOP / (step time × devices × the account's peak rate)"
        of_parts |= {
            work: flops,
            share: Term(getattr(projection, share), name=share, unit="1", text=text, inputs=inputs),
        }
    inputs = {
        "tokens": Term(float(projection.workload.tokens_per_step), name="tokens", unit="token"),
        "step_time": of_parts["step_time"],
        "num_devices": Term(float(projection.cluster.num_devices), name="num_devices", unit="1"),
    }
    if projection.training_days is not None:
        whole = Term(float(projection.workload.tokens or 0.0), name="tokens of the run", unit="token")
        of_parts["training_days"] = Term(
            projection.training_days,
            name="training_days",
            unit="d",
            text="tokens of the run / tokens of a step × step time",
            inputs={
                "tokens_of_the_run": whole,
                "tokens": inputs["tokens"],
                "step_time": of_parts["step_time"],
            },
        )
    name, text = "tokens_per_s_per_device", "tokens / (step time × devices)"
    return of_parts | {
        name: Term(getattr(projection, name), name=name, unit="token/s", text=text, inputs=inputs)
    }


def _of_parts(
    whole: str, family: str, parts: Mapping[str, Numeric], value: float, unit: str, text: str, source: str
) -> dict[str, Term]:
    """Return a total and its parts by their names as quantities; the total is made of those that are not nothing."""
    terms = {name: as_term(part, source=source).renamed(name, unit=unit) for name, part in parts.items()}
    message = {name: term for name, term in terms.items() if abs(number_of(term)) > NOTHING * value}
    total = Term(value, name=whole, unit=unit, source=source, text=text, inputs=message)
    return {whole: total, **{f"{family}.{name}": term for name, term in terms.items()}}


def _counts(projection: Projection) -> dict[str, Term]:
    counts = {
        name: float(getattr(projection.params, name))
        for name in ("total", "active", "trained", "per_device_max")
    }
    source = projection.model.source
    named = {
        f"params.{name}": Term(count, name=name, unit="parameter", source=source)
        for name, count in counts.items()
    }
    name = "num_microbatches"
    return named | {name: Term(float(projection.num_microbatches), name=name, unit="1")}


PALM = "Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B"
MEMORY_QUANTITIES = tuple(MemoryParts.__dataclass_fields__)
SCALARS = (
    "step_time", "tokens_per_s_per_device", "training_days", "num_microbatches", "mfu", "mfu_full_attention",
    "hfu", "model_flops", "model_flops_per_token", "model_flops_full_attention", "hardware_flops", "params.total",
    "params.active", "params.trained", "params.per_device_max", "memory.peak", "checkpoint_bytes",
)  # fmt: skip


def quantity_names() -> tuple[str, ...]:
    """Return every quantity that can be explained."""
    parts = (*(f"step_time.{part}" for part in TIME_PARTS), *(f"memory.{part}" for part in MEMORY_QUANTITIES))
    return (*SCALARS, *parts)


def explain(
    question: Question, quantity: str, *, stage: int | None = None, depth: int | None = None
) -> TermNode:
    """Return how `quantity` of one layout comes about: numbers with unit, formula, inputs and source.

    Parameters
    ----------
    quantity
        A name of `quantity_names()`, such as "step_time", "step_time.data_comm", "memory.activations" or "mfu".
    stage
        Pipeline rank whose memory is meant, from 0; the fullest by default.
    depth
        Levels of inputs that are needed; all by default. There may be more.

    Raises
    ------
    UnknownNameError
        If there is no such quantity; it names the nearest ones.
    SpecError
        If the layout is illegal, has no such stage, or the quantity needs what the workload does not say.

    Under a preset it is the published account's number, made of the parts that it states.
    """
    if question.preset != "default":
        return explain_account(question, quantity, stage)
    return Explainer.from_question(question).node(quantity, stage=stage, depth=depth)


def facts_of(question: Question, quantity: str) -> tuple[str, ...]:
    """Return what a part of the step is of the whole, and of a bubble the share of a pipeline of equal stages."""
    if question.preset != "default" or not quantity.startswith("step_time."):
        return ()
    explainer = Explainer.from_question(question)
    step, seconds = (number_of(explainer.term(name)) for name in ("step_time", quantity))
    facts = [f"share of the step: {seconds / step:.1%} of {format_quantity(step, 's')}"]
    layout, count = explainer.question.layout, number_of(explainer.evaluation.num_microbatches)
    if quantity == "step_time.bubble" and layout.pp > 1:
        ideal = (layout.pp - 1) / (layout.vpp * count)
        form, per = (
            ("(p-1)/m", f"{count:g}") if layout.vpp == 1 else ("(p-1)/(v m)", f"({layout.vpp} × {count:g})")
        )
        shares = f"{ideal:.1%} of the work, {ideal / (1 + ideal):.1%} of work and bubble"
        facts.append(f"1F1B of equal stages: {form} = {layout.pp - 1}/{per} = {shares}")
    return tuple(facts)


class Quantity(Struct, frozen=True, kw_only=True):
    """A quantity of one layout that can be explained."""

    name: str
    value: float
    unit: str


def quantities(question: Question) -> tuple[Quantity, ...]:
    """Return every quantity of one layout that `explain` takes, with its value; memory is that of the fullest stage."""
    if question.preset != "default":
        terms = _account(question, None)
    else:
        explainer = Explainer.from_question(question)
        timed = question.workload.tokens is not None
        names = (name for name in quantity_names() if timed or name != "training_days")
        terms = {name: explainer.term(name) for name in names}
    return tuple(
        Quantity(name=name, value=float(number_of(term)), unit=term.unit) for name, term in terms.items()
    )


class Explainer(Struct, frozen=True, kw_only=True):
    """One recorded layout, for all of its quantities."""

    question: Question
    evaluation: Evaluation

    @classmethod
    def from_question(cls, question: Question) -> Explainer:
        """Evaluate the layout of a question with every degree recorded."""
        prepared = prepare(question, recorded=True)
        evaluation = evaluate(prepared.setting, prepared.inputs)
        return cls(question=question.over_sites(prepared.question), evaluation=evaluation)

    def node(self, quantity: str, *, stage: int | None = None, depth: int | None = None) -> TermNode:
        """Return the tidy tree behind one quantity; of memory, that of one stage, the fullest by default."""
        if quantity not in quantity_names():
            raise UnknownNameError("quantity", quantity, quantity_names())
        return tidy(self.term(quantity, stage=stage).renamed(quantity).at(depth=depth))

    def term(self, quantity: str, *, stage: int | None = None) -> Term:
        """Return the recorded quantity."""
        family, _, part = quantity.partition(".")
        if family == "memory":
            return self._memory(part, stage)
        if stage is not None:
            raise required_with("memory or one of its parts (memory.activations, ...)", "a stage", quantity)
        if family == "params":
            return self._parameters(part)
        if quantity == "model_flops_per_token":
            return self._token_flops()
        if quantity.startswith("model_flops"):
            return self._model_flops(full=quantity.endswith("full_attention"))
        if quantity == "num_microbatches":
            return as_term(self.evaluation.num_microbatches)
        if quantity == "checkpoint_bytes":
            return self._checkpoint()
        if quantity == "hardware_flops":
            return self._hardware_flops()
        return self._time(family, part)

    def _time(self, family: str, part: str) -> Term:
        if part:
            seconds: Any = as_term(self.evaluation.time_parts.get(part, 0.0), name=part)
            if part == "data_comm" and self.question.workload.outer is not None:
                seconds = seconds + waited_for_sites(
                    step_time=self._own_step, utilisation=self._utilisation_of_sites
                )
            return as_term(seconds).renamed(part, unit="s")
        step: Any = self._own_step
        if self.question.workload.outer is not None:
            step = step_over_sites(step_time=step, utilisation=self._utilisation_of_sites)
        tokens: Any = Term(
            self.question.workload.tokens_per_step,
            name="tokens",
            unit="token",
            text="global_batch_size × seq_len",
        )
        match family:
            case "mfu" | "mfu_full_attention":
                return self._utilisation(self._model_flops(full=family != "mfu"), step)
            case "hfu":
                return self._utilisation(self._hardware_flops(), step)
            case "tokens_per_s_per_device":
                devices = float(self.question.cluster.num_devices)
                return as_term(tokens_per_device_second(tokens=tokens, step_time=step, num_devices=devices))
            case "training_days":
                if self.question.workload.tokens is None:
                    raise required_with("the tokens of the whole run (--tokens)", "training_days")
                return as_term(
                    days(total_tokens=self.question.workload.tokens, tokens=tokens, step_time=step)
                )
            case _:
                return as_term(step)

    @property
    def _own_step(self) -> Any:  # noqa: ANN401 (terms stand in for numbers)
        """The step without exchanges between sites."""
        return as_term(self.evaluation.step_time)

    @property
    def _utilisation_of_sites(self) -> Any:  # noqa: ANN401 (terms stand in for numbers)
        """The share of the time in which the sites compute."""
        question, step = self.question, float(value_of(self.evaluation.step_time)[0])
        return Term(
            utilisation_of(question.model, question.cluster, question.workload, step),
            name="compute_utilisation",
            unit="1",
            source=STREAMING,
            text="layers followed one by one over the link: forward waits for what comes back",
        )

    def _utilisation(self, flops: Any, step: Any) -> Term:  # noqa: ANN401 (terms stand in for numbers)
        rate: Any = Term(
            peak_rate(self.question.cluster, self.question.workload),
            name="peak_rate",
            unit="FLOP/s",
            source=self.question.cluster.device.source,
        )
        devices = float(self.question.cluster.num_devices)
        return as_term(utilisation(flops=flops, peak_rate=rate, num_devices=devices, step_time=step))

    def _memory(self, part: str, stage: int | None) -> Term:
        peaks = value_of(self.evaluation.stage_peak)
        if stage is not None and not 0 <= stage < len(peaks):
            raise out_of_range("stage", stage, f"from 0 to {len(peaks) - 1}")
        rows = np.argmax(peaks, axis=0) if stage is None else np.full(np.shape(peaks)[1:], stage)
        values = self.evaluation.stage_peak if part == "peak" else getattr(self.evaluation.memory, part)
        return as_term(Picker(rows)(values), name=part).renamed(part, unit="byte")

    def _model_flops(self, *, full: bool) -> Term:
        batch = Term(float(self.question.workload.global_batch_size), name="global_batch_size", unit="1")
        return as_term(self._sequence_flops(full=full) * batch).renamed("model_flops", unit="FLOP")

    def _token_flops(self) -> Term:
        tokens = Term(float(self.question.workload.seq_len), name="seq_len", unit="1")
        six = 6.0 * count_parameters(self.question.model).active / 1e9
        text = (
            f"FLOP of one sequence / seq_len; 6 × active parameters, without attention, are {six:.4g} GFLOP"
        )
        return as_term(self._sequence_flops(full=False) / tokens).renamed(
            "model_flops_per_token", unit="FLOP", text=text
        )

    def _sequence_flops(self, *, full: bool) -> Term:
        run = self.question.workload
        flops = flops_of(self.question.model, self.question.layout.routing, run)
        convention = (
            "every query-key pair counted" if full else "only the query-key pairs that the mask leaves"
        )
        spared = "" if run.trainable.is_all else ", 2 × by frozen weights"
        whole = flops.full if full else flops.masked
        parts = parts_of_flops(self.question.model, self.question.layout.routing, run, full=full)
        inputs = {
            part: Term(
                value, name=part, unit="FLOP", source=PALM, text=f"{100.0 * value / whole:.1f} % of it"
            )
            for part, value in sorted(parts.items(), key=lambda item: -item[1])
        }
        return Term(
            whole,
            name="FLOP of one sequence",
            unit="FLOP",
            source=PALM,
            text=f"3 × those of the forward products{spared}; {convention}, nothing recomputed; by part",
            inputs=inputs,
        )

    def _hardware_flops(self) -> Term:
        flops = as_term(self.evaluation.flops) * Term(
            float(self.question.cluster.num_devices), name="num_devices", unit="1"
        )
        return as_term(flops).renamed("hardware_flops", unit="FLOP", text="executed, recompute included")

    def _checkpoint(self) -> Term:
        model, workload = self.question.model, self.question.workload
        trained, saved = self._parameters("trained"), count_saved(model, workload.trainable)
        same = saved == count_trained(model, workload.trainable)
        parameters: Any = trained if same else Term(float(saved), name="saved", unit="parameter")
        return as_term(checkpoint_of(parameters, workload.precision))

    def _parameters(self, part: str) -> Term:
        if part == "per_device_max":
            values = self.evaluation.parameters
            picked = Picker(np.argmax(value_of(values), axis=0))(values)
            return as_term(picked).renamed(part, unit="parameter")
        model, trainable = self.question.model, self.question.workload.trainable
        if part == "trained":
            return _counted("trained", count_trained(model, trainable), model, trainable)
        counts = count_parameters(model)
        if part == "active":
            return _counted("active", counts.active, model, EVERYTHING)
        return _counted("total", counts.total, model, EVERYTHING)


def _counted(part: CountKind, count: int, model: Model, trainable: Trainable) -> Term:
    """Return a count of parameters as the blocks that a model has so often, and the weights of each."""
    blocks: dict[int, tuple[str, int, dict[str, Any]]] = {}
    for block, item, times in own_parameters(model, trainable):
        if share := share_of(part, block, item):
            text = " × ".join(
                [f"{size:,.0f}" for size in item.shape] + [f"{share:.4g} of them"] * (share != 1.0)
            )
            weight = Term(item.elements * share, name=item.name, unit="parameter", text=text)
            blocks.setdefault(id(block), (block.name, times, {}))[2][item.name] = weight
    parts: dict[str, Term] = {}
    for name, times, weights in blocks.values():
        term = as_term(total(weights, name=name, unit="parameter"))
        label = name if name not in parts else f"{name}, kind {len(parts) + 1}"
        inputs = {"blocks": Term(float(times), name="blocks", unit="1"), "each": term}
        whole = Term(
            times * term.value, name=name, unit="parameter", text="blocks × weights of each", inputs=inputs
        )
        parts[label] = term if times == 1 else whole
    text = "sum of the weights, tied ones once"
    return Term(float(count), name=part, unit="parameter", text=text, source=model.source, inputs=parts)
