# ruff: noqa: E501, ARG001, ARG005 - recipes are tables; they read best in wide lines
"""Fit the packaged compute calibrations to a kernel table and write them, with residuals.

    python benchmarks/fit_compute.py KERNELS.csv [MORE.csv ...]

Each recipe below says which tables and machines a generation is fitted to and which are only used to check
it. Parameters come from all machines listed; the interval comes from leaving one machine out at a time.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from forescale.catalogue.clusters import load_device
from forescale.cost import calibration as cal
from forescale.cost import timings as kernels
from forescale.cost.calibration import Calibration, Residual
from forescale.cost.roofline import Roofline
from forescale.cost.tile import TileModel
from forescale.cost.timings import KernelRow
from forescale.graph.ops import AttentionCore, Gemm, GroupedGemm
from forescale.spec import Device
from forescale.validation import entries
from forescale.validation import kernels as fit

DATE = "2026-11-23"
OUT = Path(__file__).parents[1] / "src/forescale/catalogue/calibrations"
PRIORS = json.loads(Path(__file__).with_name("kernel_priors.json").read_text(encoding="utf-8"))
MACHINES = {
    "V100 SXM2": "v100-sxm2-32gb",
    "A100-80GB SXM": "a100-sxm-80gb", "A100 SXM": "a100-sxm-80gb", "A100-80GB PCIe": "a100-pcie-80gb",
    "H100 SXM": "h100-sxm", "H200 SXM": "h200-sxm", "H800 SXM5": "h800-sxm", "GH200 SXM": "gh200",
    "L40S": "l40s", "B200": "b200", "B200 SXM": "b200", "GB200": "gb200", "GB200 SXM": "gb200",
    "B300": "b300", "B300 SXM": "b300", "GB300": "gb300", "MI300X": "mi300x", "MI325X": "mi325x",
    "MI355X": "mi355x", "Gaudi 2": "gaudi2", "Gaudi 3": "gaudi3",
}  # fmt: skip
NAMES = {
    "AICG": "aiconfigurator linear layers (ai-dynamo/aiconfigurator @095f58a51)",
    "AICL": "aiconfigurator linear layers in long loops (ai-dynamo/aiconfigurator @095f58a51)",
    "AICA": "aiconfigurator prefill attention (ai-dynamo/aiconfigurator @095f58a51)",
    "SMGEMM": "SimuMax products (MooreThreads/SimuMax @4dcaae5)",
    "SMGROUP": "SimuMax grouped products (MooreThreads/SimuMax @4dcaae5)",
    "SMATT": "SimuMax attention, Transformer Engine (MooreThreads/SimuMax @4dcaae5)",
    "FA2": "FlashAttention-2 README figures (Dao-AILab/flash-attention)",
    "FA3": "FlashAttention-3 README figure (Dao-AILab/flash-attention)",
    "FA3P": "FlashAttention-3, arXiv:2407.08608, Figure 6",
    "MAMF": "best matrix products found (stas00/ml-engineering @744d01e)",
    "DGEMM": "DeepGEMM README, first release (deepseek-ai/DeepGEMM @a6d97a1)",
    "DGWG": "DeepGEMM weight gradients (deepseek-ai/DeepGEMM pull request 95)",
    "MI355": "MI355X hipBLASLt (AMD-AGI/Primus @b475d603)",
    "PTG": "Primus-Turbo products (AMD-AGI/Primus-Turbo @23e36d65)",
    "PTGG": "Primus-Turbo grouped products (AMD-AGI/Primus-Turbo @23e36d65)",
    "PTA": "Primus-Turbo attention, AITER (AMD-AGI/Primus-Turbo @23e36d65)",
    "HKG": "HipKittens products, hipBLASLt (HazyResearch/HipKittens @f09e9685)",
    "HKA": "HipKittens attention, AITER (HazyResearch/HipKittens @f09e9685)",
    "DBG": "DeepBench products, CUDA 10.1 (baidu-research/DeepBench @da81ba7)",
    "HBL": "hipBLASLt products of GPT-OSS-20B, tuned (AMD-AGI/Primus @fd1eeabb)",
}


def serving_loop(row: KernelRow) -> tuple[float, float] | None:
    """Return the seconds of load and of timing of a linear layer of aiconfigurator (its sources at the revision above).

    `collector/trtllm/collect_gemm.py` calls up to five copies of the layer in turn, until their weights fill the L2
    cache; `collector/helper.py` replays these 3 times and then times 6 replays, or as many as last 1 s (0.3 s where a
    replay takes less than 0.1 ms; 3000 at most) where it takes the power as well, and leaves the device idle in between.
    """
    if not isinstance(op := row.ops[0], Gemm) or not row.library.startswith("TensorRT-LLM 1.3"):
        return None
    weights = float(op.n * op.k) * {"bf16": 2.0, "nvfp4": 0.5}.get(op.dtype, 1.0)
    replay_s = row.seconds * max(1, min(5, math.ceil(row.device.l2_bytes / weights)))
    runs = min(3000, int((0.3 if replay_s < 1e-4 else 1.0) / replay_s) + 1) if row.table == "AICL" else 6
    return 3 * replay_s, max(6, runs) * replay_s


def sweep_loop(row: KernelRow) -> tuple[float, float]:
    """Return the same of SimuMax (`simu_tools/efficency_test`), which times 75 of 100 calls, of experts 40 of 50.

    The products of a layout follow each other without a pause: 15 dense ones (four matrices of a layer and the head, with
    both gradients), 6 of experts. Half of them, which are taken to last as long as this one, were timed before it.
    """
    calls, timed, before = (100, 75, 7) if row.table == "SMGEMM" else (50, 40, 3)
    return (before * calls + calls - timed) * row.seconds, timed * row.seconds


LOOPS = {"AICG": serving_loop, "AICL": serving_loop, "SMGEMM": sweep_loop, "SMGROUP": sweep_loop}


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Which rows: tables, machines, and a condition on the row."""

    tables: tuple[str, ...]
    machines: tuple[str, ...]
    when: Callable[[KernelRow], bool] = lambda row: True

    def of(self, rows: list[KernelRow]) -> list[KernelRow]:
        return [r for r in rows if r.table in self.tables and r.device.name in self.machines and self.when(r)]

    def without(self, machine: str) -> Rows:
        return replace(self, machines=tuple(name for name in self.machines if name != machine))

    @property
    def text(self) -> str:
        return "; ".join(NAMES[t] for t in self.tables) + " on " + ", ".join(self.machines)


Wanted: TypeAlias = Callable[[KernelRow], bool]
UNSEEN = "each machine predicted from the others"
SWING_S = 0.15
"""Period of the swings of SimuMax's B200 between its full clock and two thirds of it, as its rows in order show."""


def settled(when: Wanted) -> Wanted:
    """Keep what a source timed from idle or for longer than a swing: of others it is chance in which phase they fell."""
    return lambda row: when(row) and (LOOPS.get(row.table) is not sweep_loop or row.loop[1] >= SWING_S)


def products(dtype: str) -> Callable[[KernelRow], bool]:
    return lambda row: isinstance(row.ops[0], Gemm) and row.ops[0].dtype == dtype


def attention(
    *, backward: bool, both: bool = False, libraries: tuple[str, ...] = ()
) -> Callable[[KernelRow], bool]:
    def when(row: KernelRow) -> bool:
        op = row.ops[0]
        if not isinstance(op, AttentionCore) or not op.flash or (len(row.ops) == 2) is not both:
            return False
        fits = not libraries or any(name in row.library for name in libraries)
        return fits and (both or op.backward is backward)

    return when


def grouped(row: KernelRow) -> bool:
    return isinstance(row.ops[0], GroupedGemm)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One entry to fit."""

    entry: fit.Entry
    parameters: tuple[fit.Parameter, ...]
    train: Rows
    calls: tuple[str, ...] = ()
    checks: tuple[Rows, ...] = ()
    model: fit.ModelOf = lambda calibration, device: Roofline(device=device, calibration=calibration)
    kind: str = ""
    """Older attention kernels that are fitted."""
    forward_over_backward: float = 1.0
    """Of those timed forward and backward together: how much faster their products are in forward."""
    widen: float = 1.0
    """Factor on the logarithmic interval where no other machine could check it."""
    judged: Mapping[str, Callable[[Wanted], Wanted]] = field(
        default_factory=lambda: {UNSEEN: lambda when: when}
    )
    """Which of the rows a fit to the other machines is judged by; the first are what the interval is of."""


def roofline(calibration: Calibration, device: Device) -> Roofline:
    return Roofline(device=device, calibration=calibration)


def tile(calibration: Calibration, device: Device) -> TileModel:
    return TileModel(device=device, calibration=calibration)


def evaluate(
    fitted: fit.FittedEntry,
    requested: Rows,
    rows: list[KernelRow],
    calls: bool,
    model: fit.ModelOf = roofline,
) -> np.ndarray:
    used = fitted if calls else replace(fitted, call_s={})
    return fit.errors(kernels.batches(requested.of(rows)), used, model)


def started(calibration: Calibration, kind: str) -> Calibration:
    """Return the calibration with entries for older attention kernels, started from the generic ones."""
    generic = cal.read_calibration("generic")
    tables = {
        name: {
            **{f"{key} {kind}": getattr(generic, name)[key] for key in ("forward", "backward")},
            **getattr(calibration, name),
        }
        for name in ("attention", "tile_attention")
    }
    return replace(calibration, **tables)


def older(model: fit.ModelOf, kind: str) -> fit.ModelOf:
    return lambda calibration, device: model(calibration.with_attention(kind), device)


def with_priors(generation: str, step: Step) -> tuple[Step, str]:
    """Return the step with what is known of its parameters beforehand, and a text that says so."""
    section = PRIORS.get(generation, {}).get(step.entry.section, {})
    keys = step.entry.keys or ("",)
    known = {name: prior for key in keys for name, prior in section.get(key, {}).items()}
    parameters = tuple(
        replace(p, prior=known[p.name]["value"], spread=known[p.name]["spread"]) if p.name in known else p
        for p in step.parameters
    )
    text = "".join(
        f"; prior of {name}: {prior['value']:g} ± {prior['spread']:g} ({prior['source']})"
        for name, prior in known.items()
    )
    return replace(step, parameters=parameters), text


def run_step(calibration: Calibration, step: Step, rows: list[KernelRow]) -> Calibration:
    calibration = started(calibration, step.kind) if step.kind else calibration
    step, priors = with_priors(calibration.name, step)

    def fitted_to(train: Rows) -> fit.FittedEntry:
        batch = kernels.batches(train.of(rows))
        return fit.fit_entry(calibration, step.entry, batch, step.parameters, step.model, calls=step.calls)

    fitted = fitted_to(step.train)
    residual = entries.residual(evaluate(fitted, step.train, rows, True, step.model), source=step.train.text)
    residuals: list[Residual] = []
    if len(step.train.machines) > 1:
        others = {name: fitted_to(step.train.without(name)) for name in step.train.machines}
        for source, kept in step.judged.items():
            one = [
                evaluate(
                    others[name],
                    replace(step.train, machines=(name,), when=kept(step.train.when)),
                    rows,
                    True,
                    step.model,
                )
                for name in others
            ]
            residuals.append(entries.residual(np.concatenate(one), source=source))
    interval = (
        residuals[0]
        if residuals
        else replace(residual, p10=residual.p10 * step.widen, p90=residual.p90 * step.widen)
    )
    for check in step.checks:
        logs = evaluate(fitted, check, rows, False, step.model)
        if logs.size:
            residuals.append(entries.residual(logs, source=check.text))
    record = entries.fit_record(source=step.train.text + priors, in_sample=residual, held_out=residuals, interval=interval,
                            machines=step.train.machines)  # fmt: skip
    show(calibration.name, step, fitted, residual, residuals)
    return parted(aliased(rounded(step.entry.changed(fitted.calibration, {"fit": record}), step), step), step)


def parted(calibration: Calibration, step: Step) -> Calibration:
    """Give forward and backward rates of their own that leave their sum, of 4 and 10 parts, as it was timed."""
    ratio = step.forward_over_backward
    for key in step.entry.keys if ratio != 1.0 else ():
        both = getattr(calibration, step.entry.section)[key].fraction
        local = both * (4.0 / ratio + 10.0) / 14.0 * (ratio if key.startswith("forward") else 1.0)
        entry = fit.Entry(section=step.entry.section, keys=(key,))
        calibration = entry.changed(calibration, {"fraction": float(f"{local:.4g}")})
    return calibration


def aliased(calibration: Calibration, step: Step) -> Calibration:
    """Say of data types that share another's parameters that no row of theirs was measured."""
    if step.entry.section not in {"gemm", "tile"}:
        return calibration
    measured = step.entry.keys[0]
    record = getattr(calibration, step.entry.section)[measured].fit
    for key in step.entry.keys[1:]:
        prior = cal.Fit(kind="roofline", source=f"prior: as {measured}, which was fitted ({record.source})",
                        low=round(record.low**1.5, 4), high=round(record.high**1.5, 4))  # fmt: skip
        calibration = fit.Entry(section=step.entry.section, keys=(key,)).changed(calibration, {"fit": prior})
    return calibration


def rounded(calibration: Calibration, step: Step) -> Calibration:
    table = getattr(calibration, step.entry.section)
    source = table[step.entry.keys[0]] if step.entry.keys else table
    values = {p.name: float(f"{getattr(source, p.name):.4g}") for p in step.parameters}
    return step.entry.changed(calibration, values)


def show(
    name: str, step: Step, fitted: fit.FittedEntry, residual: Residual, residuals: list[Residual]
) -> None:
    table = getattr(fitted.calibration, step.entry.section)
    source = table[step.entry.keys[0]] if step.entry.keys else table
    values = " ".join(f"{p.name}={getattr(source, p.name):.4g}" for p in step.parameters)
    print(
        f"{name:16s} {step.entry.section} {'/'.join(step.entry.keys)}: {values}",
        dict(fitted.call_s) or "",
    )
    for item in (residual, *residuals):
        print(f"    n={item.rows:4d} |e|={item.median_abs:.3f} bias={item.bias:+.3f} "
              f"p10={item.p10:+.3f} p90={item.p90:+.3f}  {item.source[:90]}")  # fmt: skip


def gemm_step(
    keys: tuple[str, ...], machines: tuple[str, ...], checks: tuple[Rows, ...] = (), widen: float = 1.0,
    looped: tuple[str, ...] = (), capped: bool = False,
) -> Step:  # fmt: skip
    """Fit products of serving tables and of those `looped` for longer; `capped`: with what the board's power leaves."""
    train = Rows(tables=("AICG", *looped), machines=machines, when=products(keys[0]))
    parameters = (*fit.GEMM, *fit.POWER) if capped else fit.GEMM
    judged = {
        UNSEEN: lambda when: when,
        **({f"{UNSEEN}, loops within a swing of power left out": settled} if looped else {}),
    }
    return Step(entry=fit.Entry(section="gemm", keys=keys), parameters=parameters, train=train, calls=("AICG",),
                checks=checks, widen=widen, judged=judged)  # fmt: skip


def attention_step(key: str, train: Rows, checks: tuple[Rows, ...] = (), calls: tuple[str, ...] = (), widen: float = 1.0,
                   few: bool = False, padding: bool = False) -> Step:  # fmt: skip
    parameters = tuple(p for p in fit.ATTENTION if not few or p.name in {"fraction", "fill"})
    parameters += (fit.PADDING,) if padding else ()
    return Step(entry=fit.Entry(section="attention", keys=(key,)), parameters=parameters, train=train,
                calls=calls, checks=checks, widen=widen)  # fmt: skip


FASTER_FORWARD = {"flash-1": 40.0 / 30.0}
"""Middles of the 30 to 50 % and 25 to 35 % of an A100's peak that FlashAttention's passes reach (arXiv:2307.08691, section 1)."""


def older_step(kind: str, library: str, tables: tuple[str, ...], machines: tuple[str, ...]) -> Step:
    def when(row: KernelRow) -> bool:
        return isinstance(row.ops[0], AttentionCore) and row.library == library

    keys = (f"forward {kind}", f"backward {kind}")
    return Step(entry=fit.Entry(section="attention", keys=keys), parameters=fit.ATTENTION, kind=kind, widen=1.5,
                forward_over_backward=FASTER_FORWARD.get(kind, 1.0),
                train=Rows(tables=tables, machines=machines, when=when), model=older(roofline, kind))  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """A backward pass without measurements: the forward pass times another generation's ratio."""

    like: str
    scaled: bool = False
    """Also scale the products' rate by the ratio of the forward passes."""
    checks: tuple[Rows, ...] = ()


def above_rating(machines: Sequence[str]) -> float:
    """Return the mean clock of `machines` over that of their quoted peaks, of which a fit's fraction is."""
    devices = [load_device(name) for name in machines]
    shares = [device.clock_hz / device.peak_clock_hz for device in devices]
    return sum(shares) / len(shares) if shares else 1.0


def run_transfer(calibration: Calibration, step: Transfer, rows: list[KernelRow]) -> Calibration:
    for section, model, softmax in (
        ("attention", roofline, "softmax_flops"),
        ("tile_attention", tile, "exp_per_clock"),
    ):
        forward = getattr(calibration, section)["forward"]
        like = getattr(MADE[step.like], section)
        a, b = like["forward"], like["backward"]
        cost = (
            getattr(b, softmax) * getattr(forward, softmax) / getattr(a, softmax)
            if getattr(a, softmax)
            else getattr(b, softmax)
        )
        names = [
            p.name for p in (*(fit.ATTENTION if section == "attention" else fit.TILE_ATTENTION), fit.PADDING)
        ]
        of_peak = b.fraction * above_rating(b.fit.machines) / above_rating(forward.fit.machines)
        of_peak *= forward.fraction / a.fraction if step.scaled else 1.0
        values = {name: getattr(b, name) for name in names}
        values |= {softmax: float(f"{cost:.4g}"), "fraction": float(f"{of_peak:.4g}")}
        entry = fit.Entry(section=section, keys=("backward",))
        changed = entry.changed(calibration, values)
        residuals = tuple(
            entries.residual(
                evaluate(fit.FittedEntry(calibration=changed), check, rows, False, model), source=check.text
            )
            for check in step.checks
        )
        record = cal.Fit(kind="roofline", low=0.8, high=1.35, held_out=residuals,
                         source=f"prior: {step.like}'s backward pass, its softmax scaled as this generation's forward pass")  # fmt: skip
        print(f"{calibration.name:16s} {section} backward like {step.like}: {values}", *residuals)
        calibration = entry.changed(changed, {"fit": record})
    return calibration


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """One or two measurements of the best shape: they place the rate, nothing else."""

    keys: tuple[str, ...]
    rows: Rows


def run_anchor(calibration: Calibration, step: Anchor, rows: list[KernelRow]) -> Calibration:
    batch = kernels.batches(step.rows.of(rows))
    for section, parameters, model in (("gemm", fit.GEMM, roofline), ("tile", fit.TILE, tile)):
        entry = fit.Entry(section=section, keys=step.keys)
        fitted = fit.fit_entry(calibration, entry, batch, parameters[:1], model)
        residual = entries.residual(fit.errors(batch, fitted, model), source=step.rows.text)
        # Best shapes found by search lie about 5 % above the fitted level of H100 and B200 (their `checks`).
        fraction = float(f"{getattr(fitted.calibration, section)[step.keys[0]].fraction * 0.95:.3g}")
        print(f"{calibration.name:16s} {section} {'/'.join(step.keys)} fraction={fraction}", residual)
        record = cal.Fit(kind="roofline", low=0.85, high=1.4, in_sample=residual,
                         source=f"prior: 0.95 of the best measured shapes, {step.rows.text}")  # fmt: skip
        calibration = entry.changed(fitted.calibration, {"fraction": fraction, "fit": record})
    return calibration


@dataclass(frozen=True, kw_only=True)
class Systolic:
    """Matrix units that are systolic arrays of this many rows and columns."""

    array: int
    source: str


def run_systolic(calibration: Calibration, step: Systolic, rows: list[KernelRow]) -> Calibration:
    table = {
        dtype: replace(entry, systolic=step.array, fraction=0.9,
                       fit=cal.Fit(source=f"prior: systolic array of {step.array} rows and columns ({step.source})", low=0.85, high=1.5))
        for dtype, entry in calibration.tile.items()
    }  # fmt: skip
    return replace(calibration, tile=table)


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """Grouped products as on another generation, where at most averages over unnamed shapes are published."""

    like: str
    values: Mapping[str, float] = field(default_factory=dict)
    """Of a generation that is fitted later; else its own are taken."""
    source: str = ""


def run_grouped(calibration: Calibration, step: Grouped, rows: list[KernelRow]) -> Calibration:
    source = "; ".join(filter(None, (f"prior: as fitted on {step.like}", step.source)))
    record = cal.Fit(kind="roofline", low=0.8, high=1.3, source=source)
    like = replace(calibration.grouped, **step.values) if step.values else MADE[step.like].grouped
    return replace(calibration, grouped=replace(like, fit=record))


AnyStep = Step | Transfer | Anchor | Systolic | Grouped


def twins(step: AnyStep) -> tuple[AnyStep, ...]:
    """Return the step and, for products and attention, the same rows for the tile model."""
    if not isinstance(step, Step) or step.entry.section not in {"gemm", "attention"}:
        return (step,)
    names = {p.name for p in step.parameters}
    few = len(names) < 4
    section, parameters = (
        ("tile", fit.TILE)
        if step.entry.section == "gemm"
        else ("tile_attention", (*fit.TILE_ATTENTION, fit.PADDING))
    )
    selected = tuple(p for p in parameters if p.name in names or not (few or p.name == fit.PADDING.name))
    model = older(tile, step.kind) if step.kind else tile
    return step, replace(
        step, entry=fit.Entry(section=section, keys=step.entry.keys), parameters=selected, model=model
    )


MADE: dict[str, Calibration] = {}
RUN = {"Step": run_step, "Transfer": run_transfer, "Anchor": run_anchor, "Systolic": run_systolic,
       "Grouped": run_grouped}  # fmt: skip


def recipes() -> dict[str, tuple[dict[str, object], tuple[AnyStep, ...]]]:
    forward, backward = attention(backward=False), attention(backward=True)
    fa2 = attention(backward=False, both=True, libraries=("FlashAttention-2",))
    modern = attention(backward=False, libraries=("FlashAttention-3", "cuDNN", "TensorRT"))
    pcie, hopper, ultra = ("a100-pcie-80gb",), ("h100-sxm", "h200-sxm"), ("b300", "gb300")
    black = ("b200", "gb200")

    def best(*names: str, dtype: str = "bf16") -> Rows:
        return Rows(tables=("MAMF",), machines=names, when=products(dtype))

    def simumax(*names: str) -> Rows:
        return Rows(tables=("SMGEMM",), machines=names, when=products("bf16"))

    def instinct(
        keys: tuple[str, ...],
        tables: tuple[str, ...],
        machines: tuple[str, ...],
        checks: tuple[Rows, ...] = (),
    ) -> Step:
        """Products of AMD; below 4096 rows PyTorch's calls, not its kernels, set the pace of HipKittens' baseline."""
        fits = products(keys[0])
        train = Rows(tables=tables, machines=machines, when=lambda r: fits(r) and r.ops[0].m >= 2880)
        return Step(
            entry=fit.Entry(section="gemm", keys=keys),
            parameters=fit.GEMM,
            train=train,
            checks=checks,
            widen=1.5,
        )

    def instinct_attention(*, wide: bool) -> Rows:
        """Forward attention of MI355X by head width: AITER of November 2025 has assembly for 128 only."""
        return Rows(
            tables=("HKA",),
            machines=("mi355x",),
            when=lambda r: forward(r) and (r.ops[0].qk_dim >= 128.0) is wide,
        )

    mxu = "Google Cloud, TPU system architecture: 128 x 128, from v6e 256 x 256"
    mme = "Intel Gaudi 3 white paper: 256 x 256 multiply-accumulate structure"
    neuron = "AWS Neuron documentation, NeuronCore architecture: 128 x 128 tensor engine"
    serving = Rows(
        tables=("AICA",), machines=("h100-sxm",), when=attention(backward=False, libraries=("SGLang",))
    )
    fa3_back = attention(backward=True, libraries=("FlashAttention-3", "cuDNN"))
    unfused = Rows(
        tables=("FA2",),
        machines=("a100-sxm-80gb",),
        when=lambda r: "unfused" in r.library and not r.ops[0].causal,
    )
    causal = replace(unfused, when=lambda r: "unfused" in r.library and r.ops[0].causal)
    unfused_h = replace(unfused, machines=("h100-sxm",))
    return {
        "volta": ({"reference_power_w": 300.0}, (
            # Depths of 512 to 4096 say little of attention's products, of 64 and 128: `fill_k` stays where it is elsewhere.
            Step(entry=fit.Entry(section="gemm", keys=("fp16", "bf16")), widen=1.5,
                 parameters=tuple(p for p in fit.GEMM if p.name != "fill_k"),
                 train=Rows(tables=("DBG",), machines=("v100-sxm2-32gb",), when=products("fp16"))),
        )),
        "ampere": ({"reference_power_w": 400.0}, (
            gemm_step(("bf16", "fp16"), ("a100-sxm-80gb",), (simumax(*pcie), best("a100-sxm-80gb")), 1.5),
            Step(entry=fit.Entry(section="grouped"), parameters=fit.GROUPED,
                 train=Rows(tables=("SMGROUP",), machines=pcie, when=grouped), widen=2.0,
                 checks=(Rows(tables=("SMGROUP",), machines=("b200",), when=grouped),)),
            attention_step("forward", Rows(tables=("SMATT",), machines=pcie, when=forward),
                           (Rows(tables=("AICA",), machines=("a100-sxm-80gb",), when=forward),), widen=1.5, few=True),
            attention_step("backward", Rows(tables=("FA2", "SMATT"), machines=("a100-sxm-80gb", *pcie),
                                            when=lambda r: fa2(r) or backward(r)), few=True, padding=True),
            Step(entry=fit.Entry(section="unfused"), parameters=fit.UNFUSED, train=unfused, checks=(causal, unfused_h),
                 widen=1.5),
            older_step("flash-1", "FlashAttention", ("FA2",), ("a100-sxm-80gb",)),
        )),
        "ada": ({"reference_power_w": 350.0, "date": "2026-11-27"}, (
            gemm_step(("bf16", "fp16"), ("l40s",), (), 1.5, capped=True),
            gemm_step(("fp8",), ("l40s",), (), 1.5, capped=True),
            gemm_step(("fp8_blockwise",), ("l40s",), (), 1.5, capped=True),
            attention_step("forward", Rows(tables=("AICA",), machines=("l40s",), when=forward), calls=("AICA",), widen=1.5),
            Transfer(like="ampere", scaled=True),
        )),
        "hopper": ({"reference_power_w": 700.0, "date": "2026-11-27"}, (
            gemm_step(("bf16", "fp16"), hopper, (best("h100-sxm", "gh200"),), capped=True),
            gemm_step(("fp8",), hopper, (best(*hopper, "gh200", dtype="fp8"),)),
            gemm_step(("fp8_blockwise",), hopper,
                      tuple(Rows(tables=(table,), machines=("h800-sxm",), when=products("fp8_blockwise"))
                            for table in ("DGEMM", "DGWG"))),
            attention_step("forward", Rows(tables=("AICA", "FA3"), machines=hopper, when=modern), (serving,), ("AICA",)),
            attention_step("backward", Rows(tables=("FA3P",), machines=("h100-sxm",), when=fa3_back), widen=1.5),
            older_step("flash-2", "FlashAttention-2", ("FA2", "FA3", "FA3P"), ("h100-sxm",)),
            older_step("flash-1", "FlashAttention", ("FA2",), ("h100-sxm",)),
            Grouped(like="ampere",
                    source="Transformer Engine multiplies expert by expert with cuBLAS on several streams here, too, and with CUTLASS on request only (NVIDIA/TransformerEngine @d0067d0d, transformer_engine/common/gemm/cublaslt_gemm.cu: NVTE_USE_CUTLASS_GROUPED_GEMM)"),
        )),
        "blackwell": ({"reference_power_w": 1000.0, "power_exponent": 0.75, "date": "2026-11-27"}, (
            gemm_step(("bf16", "fp16"), black, (best(*black),), looped=("AICL", "SMGEMM"), capped=True),
            gemm_step(("fp8", "mxfp8"), black, (best(*black, dtype="fp8"),)),
            gemm_step(("fp8_blockwise",), black), gemm_step(("nvfp4",), black),
            attention_step("forward", Rows(tables=("AICA",), machines=black, when=forward),
                           (Rows(tables=("SMATT",), machines=("b200",), when=forward),), ("AICA",)),
            attention_step("backward", Rows(tables=("SMATT",), machines=("b200",), when=backward), widen=1.5, padding=True),
            Step(entry=fit.Entry(section="grouped"), parameters=fit.GROUPED, widen=1.5,
                 train=Rows(tables=("SMGROUP",), machines=("b200",), when=grouped)),
        )),
        "blackwell-ultra": ({"reference_power_w": 0.0, "date": "2026-11-27"}, (
            gemm_step(("bf16", "fp16"), ultra, (best("b300"),)), gemm_step(("fp8", "mxfp8"), ultra),
            gemm_step(("fp8_blockwise",), ultra), gemm_step(("nvfp4",), ultra),
            attention_step("forward", Rows(tables=("AICA",), machines=ultra, when=forward), (), ("AICA",)),
            Transfer(like="blackwell"), Grouped(like="blackwell"),
        )),
        "cdna4": ({}, (
            instinct(("bf16", "fp16"), ("HBL", "HKG"), ("mi355x",)),
            instinct(("fp8", "mxfp8"), ("HBL", "HKG", "MI355"), ("mi355x",)),
            attention_step("forward", instinct_attention(wide=True), (instinct_attention(wide=False),), widen=1.5),
            attention_step("backward", Rows(tables=("HKA",), machines=("mi355x",), when=backward), widen=1.5),
            Grouped(like="cdna3", values={"fraction": 0.8534, "group_s": 8.369e-6},
                    source="products of 11 models average 1099 TFLOP/s grouped and 1535 dense, backward 922 and 1351 (AMD-AGI/Primus-Turbo @23e36d65, docs/mi300x-vs-mi355x-baseline.md)"),
        )),
        # AMD's clocks of one product under load: 1207 MHz at 750 W, 1447 at 1000 (ROCm/rocm-blogs @8e011952,
        # software-tools-optimization/measuring-max-achievable-flops-part2, table 1): ln(1447 / 1207) / ln(1000 / 750).
        "cdna3": ({"reference_power_w": 1000.0, "power_exponent": 0.63}, (
            instinct(("bf16", "fp16"), ("PTG", "HKG"), ("mi300x", "mi325x"), (best("mi300x", "mi325x"),)),
            Step(entry=fit.Entry(section="grouped"), parameters=fit.GROUPED[:2], widen=2.0,
                 train=Rows(tables=("PTGG",), machines=("mi300x",), when=grouped)),
            attention_step("forward", Rows(tables=("PTA",), machines=("mi300x",), when=forward), widen=1.5),
            Transfer(like="cdna4", scaled=True),
        )),
        "gaudi2": ({}, (Systolic(array=256, source=mme), Anchor(keys=("bf16",), rows=best("gaudi2")),
                        Anchor(keys=("fp8",), rows=best("gaudi2", dtype="fp8")))),
        "gaudi3": ({}, (Systolic(array=256, source=mme), Anchor(keys=("bf16",), rows=best("gaudi3")),
                        Anchor(keys=("fp8",), rows=best("gaudi3", dtype="fp8")))),
        **{f"tpu-{name}": ({}, (Systolic(array=128, source=mxu),)) for name in ("v4", "v5e", "v5p")},
        **{f"tpu-{name}": ({}, (Systolic(array=256, source=mxu),)) for name in ("v6e", "v7x")},
        **{f"neuron-{name}": ({}, (Systolic(array=128, source=neuron),)) for name in ("v2", "v3")},
    }  # fmt: skip


def main(paths: list[str]) -> None:
    rows = read_rows(paths)
    for name in recipes():
        (OUT / f"{name}.json").write_text(json.dumps(document(name, rows), indent=2) + "\n", encoding="utf-8")


def read_rows(paths: Sequence[str | Path]) -> list[KernelRow]:
    machines = {hardware: load_device(name) for hardware, name in MACHINES.items()}
    rows = [row for path in paths for row in kernels.read_kernels(Path(path), machines)]
    return [replace(row, loop=LOOPS.get(row.table, lambda row: None)(row)) for row in rows]


def document(name: str, rows: list[KernelRow]) -> dict[str, object]:
    """Return the file of a generation: what its recipe makes of `rows`; those it follows come before it."""
    extra, steps = recipes()[name]
    base = cal.read_calibration("generic")
    fitted = replace(base, name=name, **{"date": DATE, **extra})
    for step in (twin for single in steps for twin in twins(single)):
        fitted = RUN[type(step).__name__](fitted, step, rows)
    MADE[name] = fitted
    return differing(fitted, base, steps, extra)


def sources_of(steps: tuple[AnyStep, ...]) -> list[str]:
    """Return the sources of the rows fitted, each once."""
    tables = [
        (s.train if isinstance(s, Step) else s.rows).tables for s in steps if isinstance(s, Step | Anchor)
    ]
    names = [NAMES[table] for group in tables for table in group]
    return list(dict.fromkeys([*names, *(s.source for s in steps if isinstance(s, Systolic))]))


def differing(
    fitted: Calibration, base: Calibration, steps: tuple[AnyStep, ...], extra: dict[str, object]
) -> dict[str, object]:
    """Return what differs from the base."""
    content, prior = asdict(fitted), asdict(base)
    out: dict[str, object] = {
        "name": fitted.name,
        "base": "generic",
        "date": DATE,
        **extra,
        "source": "; ".join(sources_of(steps)),
    }
    for section in cal.TABLES:
        changed = {k: v for k, v in content[section].items() if v != prior[section].get(k)}
        if changed:
            out[section] = changed
    return out | {key: content[key] for key in ("grouped", "unfused") if content[key] != prior[key]}


if __name__ == "__main__":
    main(sys.argv[1:])
