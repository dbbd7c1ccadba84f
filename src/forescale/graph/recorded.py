"""Operators of model types of transformers, recorded once and packaged as polynomials of a configuration's dimensions.

`scripts/eager_types.py` records them. A configuration of a type has the trace that recording its own code would give.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from importlib import import_module, resources
from importlib.util import find_spec
from math import gcd, lcm
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec.structs import replace

from forescale.errors import SpecError, needing
from forescale.graph.counts import count_parameters
from forescale.graph.dealing import with_dealt_experts
from forescale.graph.dimensions import KEYS, Config, dimensions_of, flags_of, layer_labels
from forescale.graph.parallel import (
    GATHERED,
    NO_PLAN,
    SPLIT_DIMENSION,
    Plan,
    messages,
    plan_of,
    split_extent,
)
from forescale.graph.peft import adapted, with_frozen
from forescale.spec.model import Layer, Model
from forescale.spec.trace import (
    BASIS,
    Formula,
    Trace,
    TracedBlock,
    TracedKernel,
    TracedOperator,
    TracedParameter,
)
from forescale.spec.workload import (
    QUANTISED_BYTES,
    STORAGE_BYTES,
    Precision,
    Trainable,
    Workload,
    frozen_storage,
)
from forescale.struct import attributes

Term: TypeAlias = tuple[Fraction, int, int, tuple[tuple[str, int], ...]]
"""Factor, exponents of micro-batch size and sequence length, and symbols with their exponents."""
PRECISIONS: Final[Mapping[str, tuple[str, str]]] = {"bf16": ("bf16", ""), "autocast": ("fp32", "bf16")}
"""Types of parameters and of autocast."""
IN_BLOCKS: Final[Mapping[str, int]] = {"window": 50, "grouped_heads": 100, "tie_word_embeddings": 5}
AT_ENDS: Final[Mapping[str, int]] = {"window": 50, "tie_word_embeddings": 100, "grouped_heads": 0}
"""Weights of flags in which a recording may differ from a configuration; 10 for all others."""
TOLERANCE: Final = 1e-4
"""Share of the parameters that a recording may have more or less: selection biases of routers are buffers in it."""
ALIGNED: Final[Mapping[str, int]] = {"bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4}
"""Elements in 16 bytes."""


@cache
def recorded_types() -> tuple[str, ...]:
    """Return the model types whose operators are packaged, sorted."""
    names = (item.name for item in resources.files("forescale.catalogue").joinpath("eager").iterdir())
    return tuple(sorted(name.removesuffix(".json.xz") for name in names if name.endswith(".json.xz")))


@cache
def _record(kind: str) -> dict[str, Any]:
    file = resources.files("forescale.catalogue").joinpath("eager", f"{kind}.json.xz")
    content: dict[str, Any] = json.loads(lzma.decompress(file.read_bytes()))
    return content


def recorded_keys(kind: str) -> tuple[dict[str, str], str]:
    """Return the keys that give the dimensions of a type, by symbol, and the key of its number of layers."""
    record = _record(kind)
    return record["symbols"], record["layers"]


def missing_defaults(config: Config) -> dict[str, Any]:
    """Return the sizes that a type has by default, where a configuration has no spelling of their keys."""
    record = _record(config["model_type"])
    aliases = {alias: key for alias, key in record["aliases"].items() if alias in config}
    known = {*config, *aliases.values()}
    for symbol, key in record["symbols"].items():
        if known & {*KEYS[symbol]}:
            known.add(key)
    sizes = {key for symbol, key in record["symbols"].items() if symbol != "w"}
    sizes |= {"first_k_dense_replace", record["layers"]}
    result = {
        key: value
        for key, value in record["defaults"].items()
        if key in sizes - known and isinstance(value, int)
    }
    width, heads = (result.get(record["symbols"].get(symbol)) for symbol in ("h", "a"))
    if width and heads and width % heads and not known & {*KEYS["d"]}:
        result["head_dim"] = width // heads  # as modules round it
    return without_uneven_heads(result, config)


def without_uneven_heads(sizes: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Return default sizes without key/value heads that the heads of a configuration cannot share."""
    heads = next((config[key] for key in KEYS["a"] if isinstance(config.get(key), int)), 0)
    return {key: value for key, value in sizes.items() if key not in KEYS["k"] or heads % value == 0}


def complete(config: Config) -> dict[str, Any]:
    """Return a configuration with the defaults of its type."""
    record = _record(config["model_type"])
    aliases = record["aliases"]
    explicit = {aliases.get(key, key): value for key, value in config.items()}
    result = {**record["defaults"], **explicit}
    if {"partial_rotary_factor", "rotary_pct"} & set(explicit) and "rope_parameters" not in explicit:
        result.pop("rope_parameters", None)
    if result.get("use_sliding_window") is False:
        result["sliding_window"] = None
    count = int(result[record["layers"]])
    pattern = explicit.get("sliding_window_pattern", explicit.get("_sliding_window_pattern"))
    if isinstance(pattern, int) and "layer_types" not in explicit:
        result["layer_types"] = [
            "full_attention" if (index + 1) % pattern == 0 else "sliding_attention" for index in range(count)
        ]
    elif result.get("use_sliding_window") and "layer_types" not in explicit:
        first = int(result.get("max_window_layers") or 0)
        result["layer_types"] = [
            "sliding_attention" if i >= first else "full_attention" for i in range(count)
        ]
    for key in ("layer_types", "no_rope_layers", "mlp_layer_types"):
        values = result.get(key)
        if isinstance(values, list) and values and key not in explicit:
            result[key] = [values[index % len(values)] for index in range(count)]
    return result


def recorded_traces(
    config: Config, *, seq_len: int, attention: str = "sdpa", frozen: bool = False
) -> tuple[Trace, ...]:
    """Return the traces of a configuration, one for each precision.

    Parameters
    ----------
    config
        Keys of a `config.json`; the defaults of its type complete them.
    seq_len
        Sequence length, which says whether windows are shorter.
    attention
        "sdpa" or "eager".
    frozen
        Whether no parameter is trained, as in a model that is given adapters.

    Raises
    ------
    SpecError
        If its type has no such layers.
    """
    record, whole = _record(config["model_type"]), complete(config)
    dimensions = dimensions_of(whole, record["symbols"])
    labels = layer_labels(whole, int(whole[record["layers"]]))
    flags = flags_of(whole, dimensions, seq_len)
    known = {item["attention"] for item in record["variants"]}
    attention = attention if attention in known else min(known)
    traces = []
    for precision in PRECISIONS:
        key = (precision, attention, frozen)
        variants = [item for item in record["variants"] if _key(item) == key]
        if variants:
            variant = _Variant(record, variants, flags, dimensions)
            trace = variant.trace(labels, precision, attention)
            traces.append(with_frozen(trace) if frozen else trace)
    return tuple(traces)


def _key(item: Mapping[str, Any]) -> tuple[str, str, bool]:
    return item["precision"], item["attention"], item.get("frozen", False)


class _Variant:
    """The recorded combinations of flags of a type, in one precision, and the flags of a configuration."""

    def __init__(
        self,
        record: Mapping[str, Any],
        variants: list[Mapping[str, Any]],
        flags: Mapping[str, Any],
        dimensions: Mapping[str, int],
    ) -> None:
        self.record, self.variants, self.flags, self.dimensions = record, variants, flags, dimensions
        self.evaluate = Evaluator(dimensions)

    def trace(self, labels: tuple[str, ...], precision: str, attention: str) -> Trace:
        """Return the trace of layers of some kinds, with what ranks have of them if the type has a plan."""
        parameters, autocast = PRECISIONS[precision]
        ends = self._nearest(self.variants, AT_ENDS)
        layers = {label: self._layer(label) for label in dict.fromkeys(labels)}
        plan = NO_PLAN if ends.get("frozen") else plan_of(self.record["type"])
        for usable in (plan, replace(plan, styles={})):
            self.evaluate = Evaluator(self.dimensions, usable)
            try:
                blocks = {label: self.evaluate.block(label, content) for label, content in layers.items()}
                tp = self.evaluate.ranks or 1
                break
            except _NotSplitError:
                continue
        return Trace(
            parameters=parameters,
            autocast=autocast,
            layers=labels,
            blocks=blocks,
            embedding=self._block("embedding", ends["embedding"]),
            head=self._block("head", ends["head"]),
            tied=ends["tied"],
            tp=tp,
            ep=self.dimensions.get("e", 1) if plan.experts else 1,
            synchronises=ends["synchronises"],
            torch=self.record["torch"],
            transformers=self.record["transformers"],
            attention=attention,
        )

    def _layer(self, label: str) -> Mapping[str, Any]:
        having = [item for item in self.variants if label in item["blocks"]]
        if not having:
            known = ", ".join(sorted({label for item in self.variants for label in item["blocks"]}))
            raise SpecError(f"{self.record['type']} has no layers of {label}; it has {known}")
        content: Mapping[str, Any] = self.record["blocks"][self._nearest(having, IN_BLOCKS)["blocks"][label]]
        return content

    def _block(self, name: str, number: int) -> TracedBlock:
        return self.evaluate.block(name, self.record["blocks"][number])

    def _nearest(self, variants: list[Mapping[str, Any]], weights: Mapping[str, int]) -> Mapping[str, Any]:
        return min(variants, key=lambda item: _difference(item["flags"], self.flags, weights))


def traced_model(
    traces: Iterable[Trace],
    *,
    name: str,
    hidden_size: int,
    vocab_size: int = 0,
    source: str = "",
    config: str = "",
) -> Model:
    """Return the model that traces of one module in several precisions describe."""
    known = tuple(traces)
    kinds = {name: Layer(attention=None, ffn=None, num_norms=0, traced=name) for name in known[0].blocks}
    return Model(
        name=name,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        vocab_multiple=1,
        tied_embeddings=known[0].tied,
        layers=tuple(kinds[layer] for layer in known[0].layers),
        source=source,
        config=config,
        traces=known,
    )


def recorded_model(model: Model, *, seq_len: int, attention: str, workload: Workload) -> Model | None:
    """Return a model with the recorded operators of its configuration; None if none were recorded.

    None also if the recording does not have the parameters of the model: its layers are not those of the configuration.
    A model that was traced from its configuration is traced again where its trace is not for this workload.
    """
    config, frozen = json.loads(model.config) if model.config else {}, not workload.trainable.is_all
    recorded: Model | None = None
    if config.get("model_type") in recorded_types():
        recorded = _recorded_model(model, seq_len, attention, frozen)
    elif config and model.traces:
        autocast = frozen_storage(workload.precision) == "fp32"
        recorded = _traced_again(model, seq_len, attention, autocast, frozen)
    if recorded is None or not frozen:
        return recorded
    return with_adapters(recorded, workload.trainable, workload.precision)


@lru_cache(maxsize=64)
def _traced_again(model: Model, seq_len: int, attention: str, autocast: bool, frozen: bool) -> Model:
    """Return a model with a trace for a workload: one of its own, or one that is made now."""
    if any(
        trace.is_valid(seq_len)
        and bool(trace.autocast) == autocast
        and attention in ("sdpa", trace.attention)
        and trace.has_frozen == frozen
        for trace in model.traces
    ):
        return model
    return traced_config(
        json.loads(model.config),
        name=model.name,
        seq_len=seq_len,
        precision="autocast" if autocast else "bf16",
        attention=None if attention == "sdpa" else attention,
        frozen=frozen,
    )


@lru_cache(maxsize=64)
def with_adapters(model: Model, trainable: Trainable, precision: Precision) -> Model:
    """Return a model whose frozen traces have adapters, which autocast multiplies in the type of activations."""
    autocast = STORAGE_BYTES[precision.activations] < STORAGE_BYTES[precision.parameters] or (
        precision.frozen in QUANTISED_BYTES
    )
    traces = (trace for trace in model.traces if trace.has_frozen)
    return replace(model, traces=tuple(adapted(trace, trainable, autocast=autocast) for trace in traces))


def traced_config(config: Config, **options: Any) -> Model:  # noqa: ANN401
    """Return the model of a configuration, traced from the code of its type in transformers.

    `options` are the arguments of `forescale.trace.trace_config`.

    Raises
    ------
    SpecError
        If the extra `trace` is not installed.
    ForescaleError
        If the type cannot be traced; the message names module and line.
    """
    with needing("trace", f"model_type {config['model_type']!r}"):
        tracer = import_module("forescale.trace")
    return with_dealt_experts(tracer.trace_config(config, **options))


@cache
def traceable_types() -> str:
    """Return the text of transformers that lists its types; empty if it is not installed."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return ""
    folder = Path(spec.origin).parent / "models/auto"
    files = [folder / name for name in ("auto_mappings.py", "configuration_auto.py")]
    return "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())


@lru_cache(maxsize=64)
def _recorded_model(model: Model, seq_len: int, attention: str, frozen: bool) -> Model | None:
    config = json.loads(model.config)
    try:
        traces = recorded_traces(config, seq_len=seq_len, attention=attention, frozen=frozen)
    except SpecError:
        return None
    total = count_parameters(replace(model, num_mtp_layers=0, vision=None)).total
    traces = tuple(trace for trace in traces if abs(trace.num_parameters - total) <= TOLERANCE * total)
    if not traces:
        return None
    described = traced_model(
        traces, **attributes(model, "name", "hidden_size", "vocab_size", "source", "config")
    )
    return replace(described, **attributes(model, "norm", "final_norm", "head_bias"))


def _difference(recorded: Mapping[str, Any], flags: Mapping[str, Any], weights: Mapping[str, int]) -> int:
    return sum(weights.get(name, 10) for name, value in flags.items() if recorded.get(name, value) != value)


SPLIT: Final = ("a", "k", "f", "m", "y", "v")
"""Symbols of dimensions that ranks can share."""
HEADS: Final = ("a", "k")
"""Those of a width that is recorded as the hidden size: heads times their size."""
WIDTHS_OF_EXPERTS: Final = {"f", "m"}


class _NotSplitError(Exception):
    """A plan splits what the recording does not."""


class Evaluator:
    """Blocks of polynomials at some dimensions, split by a plan."""

    def __init__(self, dimensions: Mapping[str, int], plan: Plan = NO_PLAN) -> None:
        self.dimensions, self.plan = dimensions, plan
        self.ranks = 1 if plan is NO_PLAN or not plan.styles else 0
        """Number that the degrees of tensor parallelism divide."""
        self._known: dict[tuple[str, frozenset[str]], Formula] = {}
        self._split: frozenset[str] = frozenset()
        """Symbols that ranks share in the current block."""

    def formula(self, text: str) -> Formula:
        """Return the formula of micro-batch size and sequence length that a polynomial is."""
        split = self._split
        if (text, split) not in self._known:
            terms = [self._term(term, split) for term in _terms(text)]
            common = lcm(*(denominator for *_, denominator in terms))
            totals = [dict.fromkeys(BASIS, 0) for _ in range(3)]
            for part, powers, numerator, denominator in terms:
                totals[part][powers] += numerator * (common // denominator)
            shared = gcd(common, *(value for total in totals for value in total.values()))
            divisor = common // shared
            parts = [tuple(value // shared for value in total.values()) for total in totals]
            split_part, experts = (part if any(part) else () for part in parts[1:])
            self._known[text, split] = Formula(
                coefficients=parts[0], divisor=divisor, split=split_part, experts=experts
            )
        return self._known[text, split]

    def _term(self, term: Term, split: frozenset[str]) -> tuple[int, tuple[int, int], int, int]:
        """Return the part of a term, its powers of micro-batch and sequence, its numerator and its denominator."""
        factor, of_batch, of_length, symbols = term
        numerator, denominator = factor.numerator, factor.denominator
        for name, power in symbols:
            if power > 0:
                numerator *= self._dimension(name) ** power
            else:
                denominator *= self._dimension(name) ** -power
        part = self._part(symbols, split, varies=bool(of_batch or of_length))
        return part, (of_batch, of_length), numerator, denominator

    def _part(self, symbols: Sequence[tuple[str, int]], split: frozenset[str], *, varies: bool) -> int:
        """Return whether a term is whole (0), shared (1), or weights of experts (2)."""
        names = dict(symbols)
        if self.plan.experts and "e" in names and not varies and WIDTHS_OF_EXPERTS & set(names):
            return 2
        power = sum(power for name, power in symbols if name in split)
        if power not in (0, 1):
            raise _NotSplitError
        return power

    def _shared(self, parameters: Sequence[tuple[str, Sequence[str]]]) -> frozenset[str]:
        """Return the symbols that ranks share in a whole block."""
        result: set[str] = set()
        for name, shape in parameters:
            if style := self.plan.style_of(name):
                place = SPLIT_DIMENSION[style] if len(shape) > 1 else 0
                symbols = {symbol for _, _, _, powers in _terms(shape[place]) for symbol, _ in powers}
                split = symbols & {*SPLIT} or {*HEADS} & self.dimensions.keys()
                self.ranks = gcd(self.ranks, *(self._dimension(symbol) for symbol in split - {"v"}))
                result |= set() if style in GATHERED else split
        return frozenset(result)

    def dimension(self, text: str) -> int:
        """Return the size of all ranks together that a polynomial of dimensions alone is."""
        value = self.formula(text)
        return (value.coefficients[0] + sum(value.split[:1]) + sum(value.experts[:1])) // value.divisor

    def _dimension(self, name: str) -> int:
        if name not in self.dimensions:
            raise SpecError(f"it gives none of {', '.join(KEYS.get(name, (name,)))}")
        return self.dimensions[name]

    def block(self, name: str, content: Mapping[str, Any]) -> TracedBlock:
        """Return a block, with the messages of its plan."""
        formula, parameters = self.formula, content.get("parameters", ())
        self._split = self._shared(parameters)
        return TracedBlock(
            name=name,
            operators=tuple(self._operator(item) for item in content["operators"]),
            parameters=tuple(self._parameter(name, shape) for name, shape in parameters),
            input_bytes=formula(content["input_bytes"]),
            output_bytes=formula(content["output_bytes"]),
            saved_bytes=formula(content["saved_bytes"]),
            forward_bytes=tuple(map(formula, content.get("forward_bytes", ()))),
            backward_bytes=tuple(map(formula, content.get("backward_bytes", ()))),
        )

    def _parameter(self, name: str, shape: Sequence[str]) -> TracedParameter:
        sizes = tuple(int(self.dimension(extent)) for extent in shape)
        style = self.plan.style_of(name)
        dealt = self.plan.experts and shape[0] == "e" and len(shape) > 2
        return TracedParameter(name=name, shape=sizes, split="experts" if dealt else "tp" if style else "")

    def _operator(self, content: Mapping[str, Any]) -> TracedOperator:
        """Return a module with what its ranks send."""
        style = self.plan.style_at(content["module"])
        parts = {
            part: tuple(self._kernel(style, part, *kernel) for kernel in content.get(part, ()))
            for part in ("forward", "backward", "weight")
        }
        ahead, behind = messages(self.plan, content["module"], parts["forward"])
        parts |= {"forward": (*parts["forward"], *ahead), "backward": (*parts["backward"], *behind)}
        return TracedOperator(module=content["module"], **parts)

    def _kernel(  # noqa: PLR0917  (a row of the recording)
        self,
        style: str,
        part: str,
        operator: str,
        kind: str,
        dtype: str,
        extents: list[str],
        count: int,
        replayed: bool,
    ) -> TracedKernel:
        sizes = tuple(map(self.formula, extents))
        if kind == "product":
            sizes = split_extent(style, part, sizes)
        if kind == "product" and any(_is_unaligned(size, ALIGNED.get(dtype, 1)) for size in sizes[:3]):
            kind = "product_unaligned"
        return TracedKernel(
            operator=operator,
            kind=kind,  # type: ignore[arg-type]
            dtype=dtype,
            extents=sizes,
            count=count,
            replayed=replayed,
        )


def _is_unaligned(size: Formula, multiple: int) -> bool:
    """Return whether an extent that no batch changes is not a multiple of 16 bytes."""
    constant, *others = size.coefficients
    constant += sum(size.split[:1])
    alone = constant == size.divisor  # one row or column has no next one that could be misplaced
    return (
        not any(others)
        and not any(size.split[1:])
        and not alone
        and constant % (multiple * size.divisor) != 0
    )


@cache
def _terms(text: str) -> tuple[Term, ...]:
    return tuple(_parsed(text))


def _parsed(text: str) -> Iterator[Term]:
    for term in text.replace("+-", "+ -").split("+"):
        factor, powers = Fraction(1), dict[str, int]()
        for part in term.strip().split("*"):
            name, _, power = part.partition("^")
            if name[-1].isdigit():
                factor *= Fraction(name)
            else:
                powers[name] = powers.get(name, 0) + int(power or 1)
        of_batch, of_length = powers.pop("b", 0), powers.pop("s", 0)
        yield factor, of_batch, of_length, tuple(powers.items())
