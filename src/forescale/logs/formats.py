"""What frameworks print about a step: one format each, as patterns of its values. A new framework is a new row."""

from __future__ import annotations

import re
from collections.abc import Mapping

from forescale.struct import Struct
from forescale.units import GIB, MIB

NUMBER = r"([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*([kKMGTB](?![a-zA-Z]))?"
"""A number, perhaps with separators of thousands, and a prefix such as K."""
PREFIXES = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


class StepRecord(Struct, frozen=True, kw_only=True):
    """What a line says about a step; None where it says nothing."""

    step: int | None = None
    total: int | None = None
    """Steps of a whole progress bar."""
    seconds: float | None = None
    """Of one step."""
    elapsed_s: float | None = None
    """Since training began."""
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    """Sequences of all devices."""
    tokens_per_s: float | None = None
    """Of all devices."""
    tokens_per_s_per_device: float | None = None
    tflops: float | None = None
    """TFLOP/s of one device."""
    mfu: float | None = None
    """Of 1."""
    peak_bytes: float | None = None
    """Of one device: the larger of what is allocated and reserved."""
    global_batch_size: int | None = None
    data_s: float | None = None
    """Of one step: waiting for data."""
    loss: float | None = None

    def values(self) -> dict[str, float]:
        """Return what is said, by name."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


class Pattern(Struct, frozen=True):
    """Where a value stands: a regular expression around `NUMBER`, and what one unit of it is."""

    text: str
    unit: float = 1.0

    @property
    def regex(self) -> re.Pattern[str]:
        """The compiled expression; N stands for a number."""
        return re.compile(self.text.replace("N", NUMBER))


class LogFormat:
    """One framework's log: a line belongs to it if its hallmark is in it, and nothing of what others have."""

    def __init__(
        self,
        name: str,
        title: str,
        hallmark: str,
        others: str = "$^",
        **values: Pattern | tuple[Pattern, ...],
    ) -> None:
        self.name, self.title = name, title
        self.hallmark, self.others = re.compile(hallmark), re.compile(others)
        self.patterns = {
            field: [
                (item.regex, item.unit) for item in (several if isinstance(several, tuple) else (several,))
            ]
            for field, several in values.items()
        }

    def parse(self, line: str) -> StepRecord | None:
        """Return what a line says; None if it is not one of this format, or says nothing of a step."""
        if self.hallmark.search(line) is None or self.others.search(line):
            return None
        values: dict[str, float] = {}
        for field, several in self.patterns.items():
            matches = [match_of(regex, unit, line) for regex, unit in several]
            if known := [value for value in matches if value is not None]:
                values[field] = max(known)
        if (elapsed := _clock(line)) is not None and "elapsed_s" in self.patterns:
            values["elapsed_s"] = elapsed
        return _record(values) if values else None


def match_of(regex: re.Pattern[str], unit: float, line: str) -> float | None:
    """Return the value that a pattern finds in a line, in SI units; None if there is none."""
    if (match := regex.search(line)) is None:
        return None
    return float(match[1].replace(",", "")) * PREFIXES[match[2] or ""] * unit


_CLOCK = re.compile(r"(?:\[|\"elapsed_time\": \")(?:(\d+):)?(\d+):(\d+)[<\"]")
_NO_STEPS = (
    r"(?:^|[^\w ./()=-])\s*(?!(?:[Tt]rain|[Ee]poch|[Ss]tep|[Ii]ter|Progress|Pretrain|Fine))"
    r"[A-Za-z][\w ./()=-]*:\s*\d+%\|"
)
"""A progress bar of something else than training: checkpoint shards, the preparation of data."""
WHOLE = ("step", "total", "global_batch_size")


def _clock(line: str) -> float | None:
    """Return the seconds of a progress bar such as [1:02:03<25:00, or of a record that has them as text."""
    if (match := _CLOCK.search(line)) is None:
        return None
    return 3600.0 * int(match[1] or 0) + 60.0 * int(match[2]) + int(match[3])


def _record(values: Mapping[str, float]) -> StepRecord:
    return StepRecord(**{name: int(value) if name in WHOLE else value for name, value in values.items()})  # type: ignore[arg-type]


FORMATS: tuple[LogFormat, ...] = (
    LogFormat(
        "megatron",
        "Megatron-LM, Megatron-Bridge, Primus",
        r"elapsed time per iteration \(ms\)|max allocated: |Step Time :|TFLOP/s/GPU",
        step=Pattern(r"iteration\s+N\s*/"),
        seconds=(Pattern(r"elapsed time per iteration \(ms\):\s*N", 1e-3), Pattern(r"Step Time : N ?s")),
        tflops=(
            Pattern(r"throughput per GPU \(TFLOP/s/GPU\):\s*N"),
            Pattern(r"(?:GPU utilization|MODEL_TFLOP/s/GPU): ?N"),
            Pattern(r"\| (?:TFLOPs|approx flops per GPU): N(?:TFLOPS)? "),
        ),
        tokens_per_s_per_device=Pattern(r"tokens per GPU \(tokens/s/GPU\):\s*N"),
        global_batch_size=Pattern(r"global batch size:\s*N"),
        peak_bytes=(Pattern(r"max allocated: N", MIB), Pattern(r"max reserved: N", MIB)),
        loss=Pattern(r"lm loss: N"),
    ),
    LogFormat(
        "nemo",
        "NeMo",
        r"train_step_timing in s",
        step=(Pattern(r"iteration N/"), Pattern(r"global_step[:=] ?N")),
        seconds=Pattern(r"train_step_timing in s[:=]\s*N"),
        tflops=Pattern(r"TFLOPS_per_GPU[:=] ?N"),
        global_batch_size=Pattern(r"global_batch_size[:=] ?N"),
        peak_bytes=Pattern(r"(?:max_memory_(?:reserved|allocated)|peak_memory_usage)[:=] ?N"),
        loss=Pattern(r"reduced_train_loss[:=] ?N"),
    ),
    LogFormat(
        "torchtitan",
        "torchtitan",
        r"step:\s*\d+\s+.*\btps: ",
        step=Pattern(r"step:\s*N"),
        tokens_per_s_per_device=Pattern(r"\btps: N"),
        tflops=Pattern(r"tflops: N"),
        mfu=Pattern(r"mfu: N%", 0.01),
        peak_bytes=Pattern(r"memory:\s*NGiB", GIB),
        data_s=Pattern(r"data_loading\(s\): N"),
        loss=Pattern(r"loss:\s*N"),
    ),
    LogFormat(
        "nanotron",
        "nanotron",
        r"time_per_iteration_ms: ",
        step=Pattern(r"iteration: N /"),
        seconds=Pattern(r"time_per_iteration_ms: N", 1e-3),
        tokens_per_s=Pattern(r"tokens_per_sec: N"),
        tokens_per_s_per_device=Pattern(r"tokens_per_sec_per_gpu: N"),
        tflops=Pattern(r"model_tflops_per_gpu: N"),
        global_batch_size=Pattern(r"elapsed_time_per_iteration_ms.*global_batch_size: N"),  # later in tokens
        loss=Pattern(r"lm_loss: N"),
    ),
    LogFormat(
        "maxtext",
        "MaxText",
        r"completed step: \d+, seconds: ",
        step=Pattern(r"completed step: N"),
        seconds=Pattern(r"seconds: N"),
        tflops=Pattern(r"TFLOP/s(?:/device)?: N"),
        tokens_per_s_per_device=Pattern(r"Tokens/s/device: N"),
        loss=Pattern(r"loss: N"),
    ),
    LogFormat(
        "deepspeed",
        "DeepSpeed",
        r"SamplesPerSec=|iter time \(s\): ",
        step=(Pattern(r"global_step=N"), Pattern(r"steps: N"), Pattern(r"stop\] \d+/N,")),
        seconds=Pattern(r"iter time \(s\): N"),
        samples_per_s=(Pattern(r"(?:Curr|\b)SamplesPerSec=N"), Pattern(r"samples/sec: N")),
        peak_bytes=Pattern(r"MaxMemAllocated=NGB", GIB),
        loss=Pattern(r"loss: N"),
    ),
    LogFormat(
        "trainer",
        "Hugging Face Trainer",
        r"'train_runtime'|'train_speed\(|\"current_steps\": |train_steps_per_second|\d+/\d+ \[[\d:]+<",
        _NO_STEPS,
        step=(
            Pattern(r"\| N/\d+ \["),
            Pattern(r"\"current_steps\": N"),
            Pattern(r"'global_step/max_steps': 'N/"),
        ),
        total=Pattern(r"\| \d+/N \["),
        seconds=Pattern(r"'train_speed\(s/it\)': '?N"),
        elapsed_s=Pattern(r"'train_runtime': '?N"),
        steps_per_s=(
            Pattern(r"'?train_steps_per_second'?\s*[:=]\s*'?N"),
            Pattern(r"'train_speed\(iter/s\)': '?N"),
        ),
        peak_bytes=Pattern(r"'memory\(GiB\)': '?N", GIB),
        samples_per_s=Pattern(r"'?train_samples_per_second'?\s*[:=]\s*'?N"),
        loss=Pattern(r"'?(?:train_)?loss'?\s*[:=]\s*'?N"),
    ),
)
"""All formats; the first whose hallmark a line has is taken for the whole log."""
