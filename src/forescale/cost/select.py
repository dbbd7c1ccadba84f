"""Which cost models price a question: by name, or by what is known of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from forescale import wording
from forescale.cost.anchor import MARGIN, Anchor, Rule
from forescale.cost.calibration import (
    TABLES,
    Calibration,
    RunFactors,
    calibration_names,
    calibration_of,
    differing,
    inherited,
    load_calibration,
)
from forescale.cost.collectives.alpha_beta import AlphaBeta
from forescale.cost.collectives.calibration import LinkCalibration, link_calibration_of
from forescale.cost.model import TRACED, CollectiveModel, ComputeModel
from forescale.cost.roofline import Roofline
from forescale.cost.run_calibration import RunCalibration, load_run_calibration, run_calibration_of
from forescale.errors import ReaderError, UnknownNameError
from forescale.files import parse_json, read_text
from forescale.graph.ops import Compute
from forescale.limits import AMOUNT, within
from forescale.spec import Cluster, Device, MoeFfn
from forescale.struct import Struct

if TYPE_CHECKING:
    from forescale.cost.measured import Measurements

SCHEMA = "forescale.calibrations/1"
PARTS = ("runs", "kernels", "links")
LATE_TYPES = {"Measurements": "forescale.cost.measured"}


class Calibrations(Struct, frozen=True, kw_only=True):
    """What `calibrate` fits."""

    runs: RunCalibration | None = None
    """What whole runs lose against kernels alone."""
    kernels: Mapping[str, Calibration] = msgspec.field(default_factory=dict)
    """Efficiencies of kernels, by device or generation."""
    links: tuple[LinkCalibration, ...] = ()
    """Latency and bandwidth of collectives over links."""

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.calibrations/1` document; what was not fitted is left out."""
        document: dict[str, Any] = {"schema": SCHEMA}
        if self.runs is not None:
            document["runs"] = asdict(self.runs)
        if self.kernels:
            document["kernels"] = {name: differing(one) for name, one in self.kernels.items()}
        if self.links:
            document["links"] = [_finite(asdict(link)) for link in self.links]
        return document


def read_calibrations(path: str | Path) -> Calibrations:
    """Return the fits in the JSON file at `path`; a bare run calibration is read too.

    Raises
    ------
    ReaderError
        If it cannot be read, has unknown keys, or holds nothing.
    """
    content = parse_json(read_text(path), path)
    if not isinstance(content, Mapping):
        raise ReaderError(path, wording.incomplete("table", fix=f"a calibration has {', '.join(PARTS)}"))
    if "schema" not in content:
        return Calibrations(runs=run_calibration_of(content, where=path))
    return _document(content, path)


def _document(content: Mapping[str, Any], path: str | Path) -> Calibrations:
    if content["schema"] != SCHEMA:
        raise ReaderError(path, wording.wrong_type("its schema", content["schema"], SCHEMA))
    if unknown := set(content) - {"schema", *PARTS}:
        raise ReaderError(path, wording.unknown_key(min(unknown), "a calibration", PARTS))
    if not any(content.get(part) for part in PARTS):
        raise ReaderError(path, wording.empty(fix=f"it needs at least one of {', '.join(PARTS)}"))
    runs, kernels, links = (content.get(part) for part in PARTS)
    tables = [{} if table is None else table for table in (runs, kernels)]
    links = [] if links is None else links
    if not isinstance(links, list) or not all(isinstance(table, Mapping) for table in (*tables, *links)):
        raise ReaderError(path, "runs must be a table, kernels a table by device, and links a list of tables")
    return Calibrations(
        runs=None if runs is None else run_calibration_of(runs, where=path),
        kernels={name: _kernels(entry, name, path) for name, entry in (kernels or {}).items()},
        links=tuple(link_calibration_of(entry, where=path) for entry in links),
    )


def _kernels(entry: Mapping[str, Any], name: str, path: str | Path) -> Calibration:
    if not isinstance(entry, Mapping) or str(entry.get("base", "generic")) not in calibration_names():
        known = ", ".join(sorted(calibration_names()))
        raise ReaderError(path, wording.not_one_of(f"the base of kernels.{name}", entry, known))
    if wrong := [key for key in TABLES if not isinstance(entry.get(key, {}), Mapping)]:
        raise ReaderError(path, wording.wrong_type(f"kernels.{name}.{wrong[0]}", entry[wrong[0]], "a table"))
    return calibration_of(inherited(entry), where=path, key=f"kernels.{name}")


def _finite(link: dict[str, Any]) -> dict[str, Any]:
    """Return a link without what knows no limit, which JSON cannot write."""
    return {key: value for key, value in link.items() if value != float("inf")}


ComputeKind: TypeAlias = Literal["auto", "roofline", "tile", "measured"]
COMPUTE_KINDS: tuple[ComputeKind, ...] = get_args(ComputeKind)


class Choice(Struct, frozen=True, kw_only=True):
    """The compute model taken, and why."""

    compute: Literal["roofline", "tile"]
    """Of kernels that were not timed."""
    measured: bool
    """Whether timed kernels are looked up first."""
    reason: str


MOST_OPERATORS = 1_024
"""Operators whose prices are kept: those of the blocks that are kept."""
MOST_KNOWN = 8_192
"""Kernels whose seconds are kept."""


class CostModels(Struct, frozen=True, kw_only=True, eq=False):
    """What turns the operators of layouts on one cluster under one software stack into seconds."""

    run: RunFactors
    """What a run loses against kernels alone; the compute model knows its own share of it."""
    compute: ComputeModel
    collectives: CollectiveModel
    anchor: Anchor | None = None
    """What blocks took where they were measured."""
    known: dict[Compute, float] = msgspec.field(default_factory=dict)
    """Seconds of kernels that the compute model has priced, on any cluster of its devices."""
    operators: dict[object, object] = msgspec.field(default_factory=dict)
    """The same of operators that send no messages (`time/price.py`)."""

    def forget(self) -> None:
        """Keep no more than so many of them."""
        if len(self.known) > MOST_KNOWN:
            self.known.clear()
        if len(self.operators) > MOST_OPERATORS:
            self.operators.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The cost models of one question, the same for all of its candidates.

    `auto` looks timed kernels up where measurements are given, and leaves the rest to the model that the run
    calibration was fitted with: its losses of whole runs, and the errors it states, belong to that model.
    """

    compute: ComputeKind = "auto"
    clock_hz: float | None = None
    """Clock of the device to predict for; its own unless given. Memory and network do not follow it."""
    calibration: RunCalibration | None = None
    """What whole runs lose against kernels alone; by default what published runs lost."""
    measurements: Measurements | None = None
    anchor: Anchor | None = None
    """Blocks that were measured, which all layouts are restored from."""
    beside: Measurements | None = None
    """Of the measurements, those that no anchor brought."""
    kernels: Mapping[str, Calibration] = field(default_factory=dict)
    """Kernels fitted to one's own measurements, by device or generation; the packaged fits elsewhere."""
    links: tuple[LinkCalibration, ...] = ()
    """Links fitted to one's own measurements."""
    calibration_file: str | None = field(default=None, compare=False, repr=False)
    """Where one's own fits were read from: what a saved question names."""
    measurement_files: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The same of the measurements."""
    benchmark_files: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The same of the anchor."""
    safety_margin: float = MARGIN
    """Of an anchor's residual, which the upper end of a peak has more."""
    rule: Rule = "model"
    """How an anchor restores compute."""

    def __post_init__(self) -> None:
        """Check that the model exists and has what it needs.

        Raises
        ------
        UnknownNameError
            If there is no such model.
        SpecError
            If `measured` has no measurements, or a clock is none.
        """
        if not isinstance(self.compute, str) or self.compute not in COMPUTE_KINDS:
            what = "compute model"
            raise UnknownNameError(what, str(self.compute), COMPUTE_KINDS)
        if self.compute == "measured" and (self.measurements is None or not self.measurements.kernels):
            raise wording.required_with("timed kernels (--measurements FILE)", "compute model measured")
        if self.clock_hz is not None:
            within(self.clock_hz, AMOUNT, "the device's clock in Hz")

    def __hash__(self) -> int:
        """Hash what is small; the fits are compared where this is equal."""
        return hash((self.compute, self.clock_hz, self.runs.name))

    @property
    def simulated(self) -> Costs:
        """The same without what benches measured."""
        measurements = self.measurements if self.anchor is None else self.beside
        return replace(self, anchor=None, benchmark_files=(), measurements=measurements)

    @property
    def runs(self) -> RunCalibration:
        """The run calibration that counts."""
        return self.calibration or load_run_calibration()

    def run_factors(self, device: Device, software: str | None, *, experts: bool = False) -> RunFactors:
        """Return what whole runs lose on a device under one software stack, by default its usual one.

        `experts` says whether the model has experts.
        What the host loses in a step is part of what was measured where blocks were.
        """
        if software in TRACED.values():
            from forescale.cost.eager import traced_factors

            run = traced_factors(device, software)
        else:
            run = self.runs.factors(device, software, experts=experts)
        if self.anchor is None or not self.anchor.timed:
            return run
        return replace(run, microbatch_overhead_s=0.0, step_overhead_s=0.0)

    def clock_share(self, device: Device) -> float:
        """Return the ratio of the predicted clock to that of the device."""
        return (self.clock_hz or device.clock_hz) / device.clock_hz

    @property
    def choice(self) -> Choice:
        """The compute model that is taken, and why."""
        fitted = self.runs.compute
        measured = self.compute in ("auto", "measured") and bool(
            self.measurements and self.measurements.kernels
        )
        if self.compute in ("roofline", "tile"):
            return Choice(
                compute="tile" if self.compute == "tile" else "roofline", measured=False, reason="asked for"
            )
        reason = f"run calibration {self.runs.name} was fitted with it"
        if measured:
            reason = (
                f"kernels of {self.measurements.source if self.measurements else ''} first; else {reason}"
            )
        return Choice(compute=fitted, measured=measured, reason=reason)

    def kernel_calibration(self, device: Device) -> Calibration:
        """Return the fit of the kernels of `device`: one's own of it or of its generation, else the packaged."""
        local = self.kernels.get(device.name) or self.kernels.get(device.architecture)
        return local or load_calibration(device)

    def own_fits(self, cluster: Cluster) -> tuple[str, ...]:
        """Return the names of the fits of one's own that price questions on `cluster`."""
        kernels = self.kernel_calibration(cluster.device)
        links = AlphaBeta.from_cluster(cluster, own=tuple(self.links)).calibration.links
        result = [kernels.name] if kernels in self.kernels.values() else []
        return (*result, *(link.name for link in links if link in self.links))

    def models(
        self,
        cluster: Cluster,
        software: str | None,
        *,
        experts: bool = False,
        routed: MoeFfn | None = None,
        row_bytes: float = 0.0,
        dispatcher: str = "",
        run: RunFactors | None = None,
    ) -> CostModels:
        """Return the models of a cluster under one software stack, or under a `run` that loses something else.

        `experts` is as in `run_factors`; `routed`, `row_bytes` and `dispatcher` are as in `collective_model`. Equal
        questions get the same models, with what these have worked out.
        """
        if run is None:
            return _models_of(self, cluster, software, experts, routed, row_bytes, dispatcher)
        return CostModels(
            run=run,
            compute=self.compute_model(cluster.device, run),
            collectives=self.collective_model(
                cluster, routed=routed, row_bytes=row_bytes, dispatcher=dispatcher
            ),
            anchor=self.anchor,
        )

    def compute_model(self, device: Device, run: RunFactors) -> ComputeModel:
        """Return the model that prices kernels on `device`."""
        choice = self.choice
        model = select(
            "eager" if run.eager else choice.compute,
            device,
            calibration=self.kernel_calibration(device).with_run(run),
            clock_hz=self.clock_hz,
        )
        return self.measurements.compute(model, run) if choice.measured and self.measurements else model

    def collective_model(
        self,
        cluster: Cluster,
        *,
        routed: MoeFfn | None = None,
        row_bytes: float = 0.0,
        dispatcher: str = "",
    ) -> CollectiveModel:
        """Return the model that prices collectives on `cluster`.

        With `routed` experts tokens travel to them without duplicates, as rows of `row_bytes`, by the kernels of
        `dispatcher`; timed all-to-alls are then no measure.
        """
        base = AlphaBeta.from_cluster(cluster, own=tuple(self.links))
        model: CollectiveModel = base
        if routed is not None:
            from forescale.cost.collectives.expert_exchange import ExpertExchange, copy_rate, link_shares
            from forescale.spec.dispatchers import shares_routing

            groups = {"num_groups": routed.num_groups, "top_groups": routed.top_groups}
            has_probabilities = shares_routing(dispatcher) and row_bytes > 0.0
            model = ExpertExchange(
                base=base,
                top_k=routed.top_k,
                copy_rate=copy_rate(dispatcher, cluster.device.vendor),
                link_shares=link_shares(dispatcher, cluster.device.vendor),
                probabilities=(float(routed.num_experts), row_bytes) if has_probabilities else None,
                **groups,
            )
        if self.measurements is None:
            return model
        return self.measurements.messages(model, cluster, exchanges=routed is None)


@lru_cache(maxsize=64)
def _models_of(
    costs: Costs,
    cluster: Cluster,
    software: str | None,
    experts: bool,
    routed: MoeFfn | None,
    row_bytes: float,
    dispatcher: str,
) -> CostModels:
    run = costs.run_factors(cluster.device, software, experts=experts)
    models = costs.models(
        cluster, software, routed=routed, row_bytes=row_bytes, dispatcher=dispatcher, run=run
    )
    compute, known, operators = _compute_of(costs, cluster.device, software, experts)
    return msgspec.structs.replace(models, compute=compute, known=known, operators=operators)


@lru_cache(maxsize=16)
def _compute_of(
    costs: Costs, device: Device, software: str | None, experts: bool
) -> tuple[ComputeModel, dict[Compute, float], dict[object, object]]:
    """Return what prices kernels on a device, and the kernels and operators that it has priced."""
    return costs.compute_model(device, costs.run_factors(device, software, experts=experts)), {}, {}


def select(
    kind: Literal["roofline", "tile", "eager"],
    device: Device,
    *,
    calibration: Calibration | None = None,
    clock_hz: float | None = None,
) -> ComputeModel:
    """Return the compute cost model `kind` of `device`.

    Parameters
    ----------
    calibration
        The device's packaged calibration unless given.
    clock_hz
        Clock to predict for [Hz]; the device's own unless given.
    """
    selected = calibration or load_calibration(device)
    if kind == "eager":
        from forescale.cost.eager import EagerRoofline

        return EagerRoofline(device=device, calibration=selected, clock_hz=clock_hz)
    if kind == "roofline":
        return Roofline(device=device, calibration=selected, clock_hz=clock_hz)
    from forescale.cost.tile import TileModel

    return TileModel(device=device, calibration=selected, clock_hz=clock_hz)
