"""What was measured of a run: figures as typed, logs, and profiler traces of its ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from forescale.errors import ReaderError, not_found, not_one_of, wrong_format, wrong_type
from forescale.files import is_folder
from forescale.formula import number_of
from forescale.graph.counts import flops_of_parameters
from forescale.logs import RunLog, read_log, seconds_of
from forescale.profiles import TraceSummary, is_trace, summarise
from forescale.project import peak_rate
from forescale.projection.result import Projection
from forescale.struct import Struct
from forescale.units import parse, share_of

FIGURES: Mapping[str, Callable[[str], float | None]] = {
    "step": lambda text: parse(text, "second"),
    "mfu": share_of,
    "tflops": float,
    "tokens_per_s_per_device": float,
    "memory": lambda text: parse(text, "byte"),
}
"""Figures that can be typed, and how each is read."""
UNITS: Mapping[str, tuple[str, ...]] = {
    "step": ("ms", "s", "min"),
    "mfu": ("%",),
    "tflops": ("tflops", "tflop/s", "tflops/s"),
    "tokens_per_s_per_device": ("tok/s/gpu", "tok/s/device", "tokens/s/gpu", "tokens/s/device"),
    "memory": ("gib", "gb", "mib", "mb"),
}
"""Units by which a figure is known without its name; a rate in tok/s may be that of all devices."""
_FIGURE = re.compile(r"(\d[\d.,_]*)\s*([A-Za-z%/]+)", re.ASCII)
FIGURES_ARE = "figures are written 12.4s, 38%, 71GiB or 5800tok/s/device (the rate of all, by their number)"
CLOSE = 0.03
"""How near a printed rate is to what a convention gives for the measured step."""


class Convention(Struct, frozen=True, kw_only=True):
    """A way to count FLOP, or the peak, that a printed rate agrees with."""

    name: str
    text: str
    value: float
    """TFLOP/s of one device, or MFU, by this convention at the measured step."""
    usual: bool = False
    """Whether it is the standard one: causal model FLOP over the dense peak."""


class Measured(Struct, frozen=True, kw_only=True):
    """What was measured; None where nothing says it."""

    step_s: float | None = None
    mfu: float | None = None
    tflops: float | None = None
    peak_bytes: float | None = None
    traces: tuple[TraceSummary, ...] = ()
    """One per rank."""
    log: RunLog | None = None
    counted: str = ""
    """How FLOP were counted, where a rate gave the step time."""


def measured_of(
    values: Sequence[str],
    projection: Projection,
    progress: Callable[[int], None] = lambda _: None,
    convention: str = "causal",
) -> Measured:
    """Return what figures (`step=12.4s`), logs and traces say; rates become seconds by the tokens of a step.

    Parameters
    ----------
    convention
        How TFLOP/s and MFU are counted, one of `CONVENTIONS`, where they give the step time.

    Raises
    ------
    ReaderError
        If a file is neither a log nor a trace.
    SpecError
        If a figure is not one of those that are read.
    """
    if convention not in CONVENTIONS:
        raise not_one_of("--mfu-convention", convention, CONVENTIONS)
    figures: dict[str, float] = {}
    traces: list[TraceSummary] = []
    log: RunLog | None = None
    for value in values:
        name, equals, text = _by_unit(value).partition("=")
        if equals and not Path(value).exists():
            if name not in FIGURES:
                allowed = tuple(FIGURES)
                raise not_one_of("--measured", name, allowed, "or a log, a trace, or a folder of traces")
            figures[name] = _figure(name, text)
            continue
        for path in trace_files(Path(value)):
            if is_trace(path):
                traces.append(summarise(path, progress))
            else:
                log = read_log(path)
    return _together(figures, log, traces, projection, convention)


def _by_unit(value: str) -> str:
    """Return a figure such as 12.4s with the name that its unit says; others as they are."""
    figure = _FIGURE.fullmatch(value)
    if figure is None or Path(value).exists():
        return value
    unit = figure[2].lower()
    name = next((name for name, units in UNITS.items() if unit in units), None)
    if name is None:
        return value
    number = figure[1].replace(",", "").replace("_", "")
    return f"{name}={number if name in ('tflops', 'tokens_per_s_per_device') else number + figure[2]}"


def _figure(name: str, text: str) -> float:
    try:
        value = FIGURES[name](text)
    except ValueError as error:
        raise wrong_type(f"--measured {name}", text, "a number") from error
    if value is None or not value > 0.0:
        allowed = "a share from 0 to 100%, such as 35%" if name == "mfu" else "a number greater than 0"
        raise wrong_type(f"--measured {name}", text, allowed)
    return value


def trace_files(path: Path) -> list[Path]:
    """Return the traces of a folder, or the file itself."""
    if not is_folder(path):
        if not path.exists():
            raise ReaderError(path, not_found("log or trace", FIGURES_ARE))
        return [path]
    traces = sorted(item for item in path.iterdir() if item.is_file() and is_trace(item))
    if not traces:
        raise ReaderError(path, wrong_format("a folder with profiler traces", "none of its files is one"))
    return traces


def _together(
    figures: Mapping[str, float],
    log: RunLog | None,
    traces: Sequence[TraceSummary],
    projection: Projection,
    convention: str,
) -> Measured:
    tokens, devices = projection.workload.tokens_per_step, projection.cluster.num_devices
    step = figures.get("step")
    step_of = partial(
        seconds_of, tokens=tokens, devices=devices, sequences=projection.workload.global_batch_size
    )
    step = step_of(figures) if step is None else step
    if step is None and traces:
        step = median(trace.step_s for trace in traces)
    if step is None and log is not None:
        step = log.step_seconds(step_of)
    mfu = figures.get("mfu", None if log is None else log.typical("mfu"))
    tflops = figures.get("tflops", None if log is None else log.typical("tflops"))
    counted = ""
    if step is None and (rate := _flops_per_s(mfu, tflops, projection, convention)) is not None:
        name, _, _ = convention.partition(":")
        counted, flops = flops_by_convention(projection)[name]
        step, mfu, tflops = flops / rate, None, None  # rates then say nothing of how they are counted
    return Measured(
        step_s=step,
        mfu=mfu,
        tflops=tflops,
        peak_bytes=figures.get("memory", None if log is None else log.peak_bytes),
        traces=tuple(traces),
        log=log,
        counted=counted,
    )


SPARSE = ":sparse"
CONVENTIONS = tuple(f"{name}{end}" for end in ("", SPARSE) for name in ("causal", "full", "hardware", "6nd"))
"""Ways of counting FLOP, over the peak of dense or of sparse matrices."""


def flops_by_convention(projection: Projection) -> dict[str, tuple[str, float]]:
    """Return what each way of counting FLOP includes, and the FLOP of a step by it."""
    tokens = projection.workload.tokens_per_step
    dense = number_of(flops_of_parameters(parameters=projection.params.active, tokens=tokens))
    return {
        "causal": ("causal attention, no recompute", projection.model_flops_per_step),
        "full": ("attention as if nothing were masked", projection.model_flops_full_attention_per_step),
        "hardware": ("what kernels execute, recompute included", projection.hardware_flops_per_step),
        "6nd": ("6 × active parameters × tokens, without attention", dense),
    }


def _flops_per_s(
    mfu: float | None, tflops: float | None, projection: Projection, convention: str
) -> float | None:
    """Return the FLOP per second of all devices that a rate states."""
    devices = projection.cluster.num_devices
    if tflops is not None:
        return tflops * 1e12 * devices
    peak = peak_rate(projection.cluster, projection.workload) * (2.0 if convention.endswith(SPARSE) else 1.0)
    return None if mfu is None else mfu * peak * devices


def conventions(measured: Measured, projection: Projection, peak_flops: float) -> tuple[Convention, ...]:
    """Return the ways of counting that the printed TFLOP/s or MFU agrees with, at the measured step."""
    if measured.step_s is None or (measured.tflops is None and measured.mfu is None):
        return ()
    rate = 1.0 / measured.step_s / projection.cluster.num_devices
    result = []
    for name, (text, value) in flops_by_convention(projection).items():
        for peak, note in ((1.0, ""), (2.0, " over the peak of sparse matrices")):
            share = value * rate / (peak_flops * peak)
            near_rate = (
                measured.tflops is not None and peak == 1.0 and _near(value * rate / 1e12, measured.tflops)
            )
            near_mfu = measured.mfu is not None and _near(share, measured.mfu)
            if near_rate or near_mfu:
                shown = share if near_mfu else value * rate / 1e12
                usual = name == "causal" and peak == 1.0
                result.append(
                    Convention(
                        name=name + (SPARSE if note else ""), text=text + note, value=shown, usual=usual
                    )
                )
    return tuple(result)


def _near(value: float, printed: float) -> bool:
    return abs(value / printed - 1.0) <= CLOSE
