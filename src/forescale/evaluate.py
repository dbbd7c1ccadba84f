"""Evaluate layouts: step time and memory of one candidate or of an array of them, by one definition."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.formula import named
from forescale.graph.parts import ByPolicy, Parts
from forescale.memory.in_flight import InFlight
from forescale.memory.inputs import Resident, Setting, StateBytes
from forescale.memory.liveness import BlockBytes
from forescale.memory.outside import Places, outside_bytes
from forescale.memory.parameters import Sharded
from forescale.memory.peak import Footprint, footprint
from forescale.memory.states import state_bytes
from forescale.numeric import Numeric
from forescale.time.blocks import BlockCosts, PricedModel
from forescale.time.data_parallel import DataTraffic, free_traffic
from forescale.time.pipeline import Pipeline
from forescale.time.price import Pricing, Seconds
from forescale.time.step import Inputs, step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation(Footprint):
    """What one evaluation says of every candidate."""

    step_time: Numeric
    time_parts: Seconds
    """Seconds by part; they sum to the step time."""
    num_microbatches: Numeric
    stage_forward: Numeric
    """(stages, candidates) seconds of one micro-batch."""
    stage_backward: Numeric
    flops: Numeric
    """Executed FLOP per step, all devices of one pipeline's stages averaged, on one device."""
    parameters: Numeric
    """(stages, candidates) elements held by one device, before sharding over data parallel ranks."""


def inputs_of(
    setting: Setting,
    sharded: Sharded,
    costs: BlockCosts,
    *,
    traffic: DataTraffic,
    pricing: Pricing,
    pipeline: Pipeline,
    priced: PricedModel | None = None,
) -> Inputs:
    """Return what layouts are evaluated from."""
    return Inputs(
        degrees=sharded.degrees,
        stages=sharded.stages,
        held=sharded.held,
        dense=sharded.dense,
        expert=sharded.expert,
        states=state_bytes(setting, sharded),
        outside=outside_bytes(setting, sharded.degrees, pricing.places),
        blocks=costs.bytes,
        in_flight=pipeline.in_flight,
        seconds=costs.seconds,
        traffic=traffic,
        pricing=pricing,
        pipeline=pipeline,
        priced=priced,
    )


def bound_inputs(
    setting: Setting,
    sharded: Sharded,
    costs: BlockCosts,
    least: Numeric,
    *,
    pricing: Pricing,
    pipeline: Pipeline,
) -> Inputs:
    """Return what bounds of all ways to shard are evaluated from.

    States and standing buffers take the `least` bytes, (stages, candidates), and their traffic no time.
    """
    resident = least_resident(setting, sharded, costs.bytes, least, pricing.places, pipeline.in_flight)
    own = {name: getattr(resident, name) for name in Resident.__dataclass_fields__}
    return Inputs(
        **own,
        seconds=costs.seconds,
        traffic=free_traffic(sharded.held),
        pricing=pricing,
        pipeline=pipeline,
    )


def least_resident(
    setting: Setting,
    sharded: Sharded,
    blocks: Parts[ByPolicy[BlockBytes]],
    least: Numeric,
    places: Places,
    in_flight: InFlight,
) -> Resident:
    """Return the memory side of such a bound."""
    return Resident(
        degrees=sharded.degrees,
        stages=sharded.stages,
        held=sharded.held,
        dense=sharded.dense,
        expert=sharded.expert,
        states=StateBytes(weights=least, gradients=0.0, optimizer=0.0),
        outside=outside_bytes(setting, sharded.degrees, places, every_sharding=True),
        blocks=blocks,
        in_flight=in_flight,
    )


def evaluate(setting: Setting, inputs: Inputs) -> Evaluation:
    """Return time and memory of every candidate."""
    step, held = step_seconds(setting, inputs), footprint(setting, inputs)
    count = setting.num_microbatches(inputs.degrees)
    return Evaluation(
        step_time=step.total(),
        time_parts=step.parts,
        num_microbatches=count,
        stage_forward=step.forward,
        stage_backward=step.backward,
        memory=held.memory,
        stage_peak=held.stage_peak,
        peak=held.peak,
        outside=held.outside,
        flops=count * named(step.flops, "flops over stages", unit="FLOP") / inputs.degrees.pp,
        parameters=inputs.dense + inputs.expert,
    )
