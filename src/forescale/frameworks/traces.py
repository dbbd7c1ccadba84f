"""Model files of recorded operators: JSON with a schema version and a checksum, data only."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from forescale.atomic_write import write_text
from forescale.checksum import CHECKSUM, checksum
from forescale.errors import (
    ReaderError,
    corrupted,
    empty,
    incomplete,
    newer_version,
    not_one_of,
    out_of_range,
    wrong_format,
)
from forescale.files import parse_json, read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.reading import Options, ParsedFile
from forescale.graph.recorded import traced_model
from forescale.spec.model import Model
from forescale.spec.trace import BASIS, Formula, Trace, TracedBlock, TracedKernel, extents_of
from forescale.struct import attributes

FAMILY: Final = "forescale.trace/"
SCHEMA: Final = f"{FAMILY}1"
LARGEST: Final = 4 * 2**20
"""Bytes of a trace file."""
LARGEST_NUMBER: Final = 2**62
MOST_LAYERS: Final = 10_000
MOST_KERNELS: Final = 1_000_000
"""Kernels alike."""


class TraceReader(Signed):
    """A model whose operators were recorded by `forescale trace`."""

    name: Final = "trace"
    title: Final = "Forescale trace"

    def read(self, path: Path, options: Options) -> ParsedFile:  # noqa: ARG002  (nothing is left open)
        """Return the model at `path`."""
        return ParsedFile(format=self.name, model=read_trace(path))


def document_of(model: Model) -> dict[str, Any]:
    """Return the `forescale.trace/1` document of a model."""
    content = {
        "schema": SCHEMA,
        **attributes(model, "name", "hidden_size", "vocab_size", "source"),
        "traces": msgspec.to_builtins(list(model.traces)),
    }
    return {**content, CHECKSUM: checksum(content)}


def save_trace(model: Model, path: Path) -> None:
    """Write a traced model; the file appears whole or not at all.

    Raises
    ------
    ForescaleError
        If the model was not traced, or the file cannot be written.
    """
    if not model.traces:
        raise incomplete("trace", model.name, "record it with fs.trace or forescale trace")
    write_text(path, json.dumps(document_of(model), separators=(",", ":")) + "\n")


def read_trace(path: Path) -> Model:
    """Return the model in a trace file.

    Raises
    ------
    ReaderError
        If it cannot be read, is of another version, was changed, or describes no blocks.
    """
    return model_of_document(parse_json(read_text(path, most=LARGEST), path), path)


def model_of_document(content: Any, path: Path) -> Model:  # noqa: ANN401  (any JSON)
    """Return the model in the content of a trace file; raises as `read_trace`."""
    if not isinstance(content, Mapping):
        raise ReaderError(path, wrong_format(f"a JSON object with the schema {SCHEMA}"))
    _check_version(content.get("schema"), path)
    rest = {key: value for key, value in content.items() if key != CHECKSUM}
    if content.get(CHECKSUM) != checksum(rest):
        raise ReaderError(path, corrupted("it", "the checksum does not match the content", "trace again"))
    try:
        traces = msgspec.convert(rest.get("traces"), tuple[Trace, ...])
        if not traces:
            raise ReaderError(path, empty("traces", "a trace file has at least one"))
        for trace in traces:
            _check(trace, path)
        return traced_model(
            traces,
            name=msgspec.convert(rest.get("name"), str),
            hidden_size=msgspec.convert(rest.get("hidden_size"), int),
            vocab_size=msgspec.convert(rest.get("vocab_size", 0), int),
            source=msgspec.convert(rest.get("source", ""), str),
        )
    except msgspec.ValidationError as error:
        raise ReaderError(path, corrupted("traces", str(error))) from None


def _check_version(schema: object, path: Path) -> None:
    if schema == SCHEMA:
        return
    text = str(schema)
    newer = (
        text.startswith(FAMILY) and text.removeprefix(FAMILY).isdigit() and int(text.removeprefix(FAMILY)) > 1
    )
    if newer:
        raise ReaderError(path, newer_version("its schema", text, SCHEMA))
    raise ReaderError(path, not_one_of("schema", text, (SCHEMA,), "trace the model again"))


def _check(trace: Trace, path: Path) -> None:
    """Raise unless names, numbers and extents of a trace are consistent and bounded."""
    if not 0 < len(trace.layers) <= MOST_LAYERS:
        allowed = f"1 to {MOST_LAYERS:,}"
        raise ReaderError(path, out_of_range("the number of layers", len(trace.layers), allowed))
    for name, ranks in (("tp", trace.tp), ("ep", trace.ep)):
        if not 0 < ranks <= MOST_LAYERS:
            raise ReaderError(path, out_of_range(name, ranks, f"1 to {MOST_LAYERS:,}"))
    if unknown := [name for name in trace.layers if name not in trace.blocks]:
        raise ReaderError(path, not_one_of("layers", unknown[0], list(trace.blocks)))
    if unused := set(trace.blocks) - set(trace.layers):
        raise ReaderError(path, not_one_of("blocks", min(unused), list(trace.layers)))
    for block in (*trace.blocks.values(), trace.embedding, trace.head):
        for violation in _problems(block):
            raise ReaderError(path, corrupted(f"block {block.name!r}", violation))


def _problems(block: TracedBlock) -> Iterable[str]:
    formulas = [
        block.input_bytes,
        block.output_bytes,
        block.saved_bytes,
        *block.forward_bytes,
        *block.backward_bytes,
    ]
    for operator in block.operators:
        for kernel in (*operator.forward, *operator.backward, *operator.weight):
            yield from _kernel_problems(kernel)
            formulas += kernel.extents
    if not all(map(_is_sound, formulas)):
        yield f"a formula has {len(BASIS)} whole coefficients below 2^62 and a positive divisor"
    for parameter in block.parameters:
        if not all(0 < extent < 2**40 for extent in parameter.shape) or len(parameter.shape) > 8:
            yield f"the shape of parameter {parameter.name!r} is {parameter.shape}; extents are positive and below 2^40"


def _kernel_problems(kernel: TracedKernel) -> Iterable[str]:
    expected = extents_of(kernel.kind)
    if len(kernel.extents) != len(expected):
        yield f"{kernel.operator} needs {len(expected)} extents ({', '.join(expected)}), got {len(kernel.extents)}"
    if not 0 < kernel.count <= MOST_KERNELS:
        yield f"the count of {kernel.operator} must be 1 to {MOST_KERNELS:,}, got {kernel.count}"


def _is_sound(formula: Formula) -> bool:
    parts = (formula.coefficients, formula.split, formula.experts)
    return (
        bool(parts[0])
        and all(len(part) == len(BASIS) for part in parts if part)
        and 0 < formula.divisor < LARGEST_NUMBER
        and all(abs(coefficient) < LARGEST_NUMBER for part in parts for coefficient in part)
    )
