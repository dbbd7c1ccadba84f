"""What must hold of every projection, as functions that say what does not; and a long seeded run of them.

    python -m tests.laws 3000 --seed 1

prints every law that a random layout breaks, with the layout, and how many were tried.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tests.layouts import Asked, question

from forescale.cost.roofline import attention_dtype, peak_rate
from forescale.errors import PhysicsError, SpecError
from forescale.explain import Explainer
from forescale.graph.counts import executed_flops
from forescale.graph.ops import AttentionCore, Collective, Elementwise, Gemm, GroupedGemm
from forescale.inputs import prepare
from forescale.memory.timeline import total_bytes
from forescale.project import memory_timeline, project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.schedule import family
from forescale.search.compare import compare
from forescale.search.evaluate import score
from forescale.search.tree import enumerate_layouts
from forescale.spec import Cluster, Device, MatrixRates
from forescale.spec.space import NAMES, Space
from forescale.spec.workload import STORAGE_BYTES

CLOSE = 1e-9
"""Relative slack of sums in floating point."""
STRAGGLERS = 1.1
"""What a step takes of each second that its mean device does is less."""
OVER_TIME = 1e-3
"""Relative slack of schedules other than 1F1B, whose passes in flight are averages of chunks."""
Change = Callable[[Asked], Asked | None]


def slower_products(request: Asked) -> Asked:
    device = request.cluster.device
    rates = {
        name: rate and rate / 2.0
        for name in MatrixRates.__dataclass_fields__
        for rate in [getattr(device.matrix_flops, name)]
    }
    slow = replace(device, matrix_flops=MatrixRates(**rates), vector_flops=device.vector_flops / 2.0)
    return replace(request, cluster=replace(request.cluster, device=slow))


def _device(request: Asked, name: str) -> Asked:
    slow = replace(request.cluster.device, **{name: getattr(request.cluster.device, name) / 2.0})
    return replace(request, cluster=replace(request.cluster, device=slow))


def slower_memory(request: Asked) -> Asked:
    return _device(request, "hbm_bandwidth")


def slower_host(request: Asked) -> Asked:
    return _device(request, "host_bandwidth")


def _tier(cluster: Cluster, index: int) -> Cluster:
    tier = cluster.tiers[index]
    link = tier.link_bandwidth and tier.link_bandwidth / 2.0
    slow = replace(tier, bandwidth=tier.bandwidth / 2.0, link_bandwidth=link, latency=2.0 * tier.latency)
    return replace(cluster, tiers=(*cluster.tiers[:index], slow, *cluster.tiers[index + 1 :]))


def slower_inner_link(request: Asked) -> Asked:
    return replace(request, cluster=_tier(request.cluster, 0))


def slower_outer_link(request: Asked) -> Asked:
    return replace(request, cluster=_tier(request.cluster, len(request.cluster.tiers) - 1))


def longer(request: Asked) -> Asked:
    return replace(request, workload=replace(request.workload, seq_len=2 * request.workload.seq_len))


def larger_batch(request: Asked) -> Asked:
    work = request.workload
    return replace(request, workload=replace(work, global_batch_size=2 * work.global_batch_size))


def deeper(request: Asked) -> Asked | None:
    """Every layer twice, so that what each stage holds doubles where layers divide evenly."""
    if request.strategy.recompute.layer_ids or request.model.num_layers % (
        request.strategy.pp * request.strategy.vpp
    ):
        return None
    layers = tuple(layer for layer in request.model.layers for _ in range(2))
    return replace(request, model=replace(request.model, layers=layers))


TIME = {
    item.__name__: item
    for item in (
        slower_products,
        slower_memory,
        slower_host,
        slower_inner_link,
        slower_outer_link,
        longer,
        larger_batch,
        deeper,
    )
}
"""After which a step takes no less time."""


def smaller_zero(request: Asked) -> Asked | None:
    zero = request.strategy.zero
    return replace(request, strategy=replace(request.strategy, zero=zero - 1)) if zero else None


def replicated(request: Asked) -> Asked | None:
    layout = request.strategy
    if layout.dp_shard % 2:
        return None
    return replace(
        request,
        strategy=replace(layout, dp_shard=layout.dp_shard // 2, dp_replicate=2 * layout.dp_replicate),
    )


def _halved(request: Asked, axis: str) -> Asked | None:
    layout = request.strategy
    if getattr(layout, axis) % 2:
        return None
    halved = replace(layout, **{axis: getattr(layout, axis) // 2})
    cluster = replace(request.cluster, num_devices=halved.num_devices)
    return replace(request, strategy=halved, cluster=cluster)


def half_the_tensor_ranks(request: Asked) -> Asked | None:
    return _halved(request, "tp")


def half_the_context_ranks(request: Asked) -> Asked | None:
    return _halved(request, "cp")


def half_the_expert_ranks(request: Asked) -> Asked | None:
    return _halved(request, "ep")


SHARDING = {
    item.__name__: item
    for item in (
        smaller_zero,
        replicated,
        half_the_tensor_ranks,
        half_the_context_ranks,
        half_the_expert_ranks,
    )
}
"""What leaves a device with more of the model."""
MEMORY = {**TIME, **SHARDING}
"""After which no less memory is needed."""


def broken(request: Asked) -> list[tuple[str, str]]:
    """Return the laws that a layout breaks, each with its numbers.

    Raises
    ------
    SpecError
        If the layout is no layout.
    """
    result = project(*request.arguments)
    results_found = [(law.__name__, text) for law in ALONE for text in law(request, result)]
    changed: dict[str, Projection] = {}
    for name, change in MEMORY.items():
        other = change(request)
        try:
            changed[name] = project(*other.arguments) if other else result
        except SpecError:
            continue
    for name in TIME.keys() & changed.keys():
        if _time(name, request, result, changed[name]) < result.step_time_s * (1.0 - CLOSE):
            results_found.append(
                (f"time: {name}", f"{result.step_time_s:.6g} s → {changed[name].step_time_s:.6g} s")
            )
    for name in MEMORY.keys() & changed.keys():
        before, after = (_needed(name, request, item) for item in (result, changed[name]))
        if after < before * (1.0 - CLOSE) - _comes_with(name, request):
            results_found.append((f"memory: {name}", f"{before / 2**30:.4f} → {after / 2**30:.4f} GiB"))
    return sorted(results_found)


def _needed(name: str, request: Asked, result: Projection) -> float:
    """Return the bytes that a law of memory is about: what tensors take of the fullest stage.

    From zero 2 on, blocks stand whole beside their shards, weights gathered or gradients unreduced, and there is
    nothing to gather of what is not sharded, or by a smaller stage: these buffers are left out where shards get fewer.
    Where a change does something else beside, states alone are held to the law.
    """
    if _does_more(name, request):
        return max(
            stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
            for stage in result.memory.stages
        )
    left_out = request.strategy.zero >= 2 and name in SHARDING
    return max(stage.allocated_bytes - left_out * stage.buffers_bytes for stage in result.memory.stages)


def _comes_with(name: str, request: Asked) -> float:
    """Return the bytes that stage 1 costs beside what it shards: DeepSpeed's reduce_bucket_size elements of gradients.

    stage_1_and_2.py allocates them, and at stage 0 DeepSpeed's engine reduces gradients where they lie.
    """
    if name != "smaller_zero" or request.strategy.zero != 1:
        return 0.0
    width = {"fp32": 4, "bf16": 2, "fp16": 2}[request.workload.precision.gradients]
    return width * request.strategy.kernels.bucket_elements


def _does_more(name: str, request: Asked) -> bool:
    """Return whether a change moves activations beside what the law is about.

    V schedules are sought anew for each number of micro-batches. With half the groups of experts the fullest has less
    above its share of tokens, and a single one exchanges none.
    """
    if name == "larger_batch":
        return str(request.strategy.schedule).startswith("v-")
    uneven = request.strategy.routing.imbalance > 1.0
    return name == "half_the_expert_ranks" and (uneven or request.strategy.ep == 2)


def _time(name: str, request: Asked, before: Projection, after: Projection) -> float:
    """Return the step after a change, with what it no longer shows though all that is done takes as long or longer.

    Of traffic once per step the last stage to be ready counts, and one that is not the slowest hides more when it
    takes longer. Pieces of a longer sequence share the time of a stage otherwise, where launches decide it, and the
    waits between them are others.
    """
    parts = ["data_comm"] * (request.strategy.pp > 1)
    pieces = request.strategy.schedule is not None and family(request.strategy.schedule).splits_sequences
    parts += ["bubble"] * (name == "longer" and pieces)
    hidden = sum(max(before.time_s[part] - after.time_s[part], 0.0) for part in parts)
    return after.step_time_s + STRAGGLERS * hidden


def parts_sum(_: Asked, result: Projection) -> Iterator[str]:
    total = sum(result.time_s.values())
    if abs(total - result.step_time_s) > CLOSE * total:
        yield f"parts sum to {total:.9g} s of {result.step_time_s:.9g} s"
    for name, seconds in result.time_s.items():
        if seconds < -CLOSE * total:
            yield f"{name} takes {seconds:.3g} s"
    for stage in result.memory.stages:
        parts = [
            getattr(stage, f"{name}_bytes")
            for name in ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")
        ]
        if abs(sum(parts) - stage.peak_bytes) > CLOSE * stage.peak_bytes or min(parts) < 0.0:
            yield f"stage {stage.stage}: {parts} sum to {sum(parts):.9g} of {stage.peak_bytes:.9g} bytes"


def utilisation_is_a_share(_: Asked, result: Projection) -> Iterator[str]:
    if not 0.0 < result.mfu <= result.hfu * (1.0 + CLOSE):
        yield f"MFU {result.mfu:.6f}, HFU {result.hfu:.6f}"
    if result.hfu > 1.0:
        yield f"HFU {result.hfu:.4f}"


def unfused_attention_computes_all_pairs(request: Asked, result: Projection) -> Iterator[str]:
    """Only flash attention skips masked pairs: without it HFU counts all that full-attention MFU does, and more."""
    if not request.strategy.flash_attention and result.hfu < result.mfu_full_attention * (1.0 - CLOSE):
        yield f"HFU {result.hfu:.6f}, MFU with full attention {result.mfu_full_attention:.6f}"


def kernels_stay_below_the_rates_of_the_device(request: Asked, _: Projection) -> Iterator[str]:
    """No product is faster than the peak at the device's clock, and no pass faster than its memory."""
    model, cluster, layout, workload = request.arguments
    prepared = prepare(Question(model=model, cluster=cluster, strategy=layout, workload=workload))
    device, seconds_of = cluster.device, prepared.inputs.pricing.seconds
    clock = device.clock_hz / device.peak_clock_hz
    for priced in prepared.priced.priced.all():
        for operator in priced.block.operators:
            for op in operator.primitives:
                if isinstance(op, Collective):
                    continue
                if isinstance(op, Elementwise):
                    least = float(op.bytes_moved) / device.hbm_bandwidth
                else:
                    least = float(executed_flops(op)) / (peak_rate(device, rate_type(device, op)) * clock)
                if float(seconds_of(op)) < least * (1.0 - CLOSE):
                    yield f"{priced.block.name}, {operator.name}: {float(seconds_of(op)):.4g} s of at least {least:.4g} s"


def rate_type(device: Device, op: Gemm | GroupedGemm | AttentionCore) -> str:
    """Return the type that a product runs in; attention takes the other 16-bit type where a device lacks bf16."""
    return attention_dtype(device, op.dtype) if isinstance(op, AttentionCore) else op.dtype


def memory_holds_its_states(request: Asked, result: Projection) -> Iterator[str]:
    """All devices together hold each trained weight once at least, unless the host does."""
    if request.strategy.offload.parameters:
        return
    stages, ranks = result.memory.stages, request.cluster.num_devices / request.strategy.pp
    kept = sum(stage.weights_bytes for stage in stages) * ranks
    narrowest = min(STORAGE_BYTES.values()) * result.params.trained
    if kept < narrowest * (1.0 - CLOSE):
        yield f"weights take {kept:.6g} bytes of all devices, less than {narrowest:.6g}"


def states_fit_the_peak(_: Asked, result: Projection) -> Iterator[str]:
    memory = result.memory
    for stage in memory.stages:
        states = stage.weights_bytes + stage.gradients_bytes + stage.optimizer_bytes
        if stage.peak_bytes < states or stage.peak_bytes > memory.peak_bytes * (1.0 + CLOSE):
            yield f"stage {stage.stage} needs {stage.peak_bytes:.6g}, its states {states:.6g}, the peak is {memory.peak_bytes:.6g}"
    if not memory.peak_low_bytes <= memory.peak_bytes <= memory.peak_high_bytes:
        yield "the interval of memory does not hold its middle"
    if not result.step_time.low <= result.step_time.expected <= result.step_time.high:
        yield "the interval of time does not hold its middle"


def reads_back(_: Asked, result: Projection) -> Iterator[str]:
    document = json.loads(json.dumps(result.to_json()))
    difference = compare(result, document)
    if difference.question or difference.layout:
        yield f"read back with other {[item.name for item in (*difference.question, *difference.layout)]}"
    for figure in (*difference.figures, *difference.time_parts):
        if figure.a != figure.b:
            yield f"{figure.name} read back as {figure.b} instead of {figure.a}"


def seen_over_time(request: Asked, result: Projection) -> Iterator[str]:
    """Ranks peak over time where the projection says; what a timeline does not follow it refuses.

    Other schedules than 1F1B need not have the most micro-batches in flight and the largest working set at once: there
    the projection, which adds them, may lie above by what is at work.
    """
    try:
        timeline = memory_timeline(*request.arguments)
    except SpecError as error:
        if (error.code, error.key) != ("unsupported_by", "a memory timeline"):  # what it is refused for
            yield str(error)
        return
    layout = request.strategy
    exact = layout.vpp == 1 and layout.schedule in (None, "1f1b")
    if layout.kernels.keeps_stage_outputs and layout.vpp > 1:
        return  # which chunks those in flight are of is not asked
    for rank, stage in zip(timeline.ranks, result.memory.stages, strict=True):
        seen, allocated_bytes = rank.peak.allocated_bytes, stage.allocated_bytes
        local = [load for load in timeline.loads if load.rank == rank.rank]
        active = max(total_bytes(work) for load in local for work in (load.forward, load.backward))
        apart = 0.0 if exact else active + sum(total_bytes(load.between) for load in local)
        slack = (CLOSE if exact else OVER_TIME) * allocated_bytes
        if not -slack - apart <= seen - allocated_bytes <= slack:
            yield f"rank {rank.rank} peaks at {seen / 2**30:.6f} GiB, the projection says {allocated_bytes / 2**30:.6f}"


def is_its_row_of_a_search(request: Asked, result: Projection) -> Iterator[str]:
    """A space of this layout only has it, with these figures; a search leaves out what is another one's double."""
    layouts = enumerate_layouts(request.model, request.cluster, request.workload, space_of(request))
    if len(layouts) == 0:
        return
    scores = score(
        Question(
            model=request.model,
            cluster=request.cluster,
            workload=request.workload,
            space=space_of(request),
        ),
        layouts,
    )
    row = np.isfinite(scores.step_time)
    results_found = scores.step_time[row].tolist(), scores.peak[row].tolist()
    if results_found != ([result.step_time_s], [result.memory.peak_bytes]):
        yield f"a search has {results_found} for {result.step_time_s!r} s and {result.memory.peak_bytes!r} bytes"


def is_explained(request: Asked, result: Projection) -> Iterator[str]:
    """The trees of the step and of the peak have the projected numbers at their roots."""
    model, cluster, layout, workload = request.arguments
    explainer = Explainer.from_question(
        Question(model=model, cluster=cluster, strategy=layout, workload=workload)
    )
    message = {"step_time": result.step_time_s, "memory.peak": result.memory.peak_bytes}
    for quantity, value in message.items():
        results_found = explainer.node(quantity).value
        if results_found != value:
            yield f"{quantity} is explained as {results_found!r} instead of {value!r}"


def space_of(request: Asked, **more: Any) -> Space:
    """Return the space that holds one layout only, or more."""
    kept = {name: (getattr(request.strategy, name),) for name in NAMES if name != "placement"}
    return Space(**{**kept, "placement": ("orders",), "base": request.strategy, **more})


ALONE: Sequence[Callable[[Asked, Projection], Iterator[str]]] = (
    parts_sum,
    utilisation_is_a_share,
    unfused_attention_computes_all_pairs,
    kernels_stay_below_the_rates_of_the_device,
    memory_holds_its_states,
    states_fit_the_peak,
    reads_back,
    seen_over_time,
    is_its_row_of_a_search,
    is_explained,
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layouts", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    source, tried, drawn, counts = random.Random(options.seed), 0, 0, Counter[str]()
    while tried < options.layouts:
        drawn += 1
        seed = source.getrandbits(40)
        request = question(random.Random(seed).choice)
        try:
            project(*request.arguments)
        except SpecError:
            continue
        except PhysicsError:
            pass
        try:
            result = broken(request)
        except Exception as error:
            result = [(type(error).__name__, str(error)[:300])]
        tried += 1
        for law, text in result:
            counts[law] += 1
            if options.only in law:
                sys.stdout.write(f"{law}: {text}\n    {request}\n")
                sys.stdout.flush()
    total = sum(counts.values())
    sys.stdout.write(
        f"{tried} layouts (of {drawn} drawn), {total} violations: {dict(counts.most_common())}\n"
    )
    return 1 if counts else 0


if __name__ == "__main__":
    sys.exit(main())
