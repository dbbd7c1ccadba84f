"""A device and links of round numbers without any loss, so that tests can work seconds out by hand."""

from __future__ import annotations

from dataclasses import replace

from forescale.cost.calibration import (
    AttentionParameters,
    Calibration,
    GemmParameters,
    GroupedParameters,
    MemoryParameters,
    RunFactors,
    UnfusedParameters,
)
from forescale.cost.collectives.calibration import LinkCalibration, WireProtocol
from forescale.cost.roofline import Roofline
from forescale.cost.run_calibration import RunCalibration, SharedFactors, SoftwareFactors
from forescale.cost.select import Costs
from forescale.graph.operator import Block
from forescale.graph.ops import Collective
from forescale.graph.sharding import ShardingRules, split_layout
from forescale.spec import Cluster, Device, Layout, MatrixRates, Precision, Tier

RATE, HBM, LINK = 100e12, 1e12, 100e9
"""FLOP/s, byte/s of memory, byte/s of the network."""
PASSES = ("forward", "backward_input", "backward_weight")
TYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp8_blockwise", "mxfp8", "nvfp4")
FAMILIES = ("elementwise", "norm", "softmax", "permute", "embedding", "loss", "optimizer", "cast")
LOSSLESS = RunFactors()
NEVER = float("inf")


def device(rate: float = RATE, hbm: float = HBM, architecture: str = "toy") -> Device:
    """Return a device of one core, whose matrix products in 8 bits run twice and in 4 bits four times as fast."""
    return Device(
        name="toy",
        vendor="toy",
        architecture=architecture,
        matrix_flops=MatrixRates(
            fp32=rate / 4, tf32=rate / 2, fp16=rate, bf16=rate, fp8=2 * rate, fp4=4 * rate
        ),
        vector_flops=rate / 4,
        hbm_bytes=1e12,
        hbm_bandwidth=hbm,
        num_cores=1,
        clock_hz=1e9,
        host_bandwidth=10e9,
    )


def calibration(launch_s: float = 0.0) -> Calibration:
    """Return kernels that reach every peak: tiles of one element, nothing filled or lost; causal masks leave half a
    pair per query undone, as their blocks of one query start on the diagonal.
    """  # fmt: skip
    product = GemmParameters(
        fraction=1.0, fill_k=0.0, edge=0.0, tail=0.0, launch_s=launch_s, bandwidth=1.0, tiles=((1, 1),)
    )
    core = AttentionParameters(
        fraction=1.0, softmax_flops=0.0, fill=0.0, block_q=1.0, tail=0.0, launch_s=launch_s, bandwidth=1.0
    )
    return Calibration(
        name="toy",
        date="2026-11-22",
        source="round numbers",
        gemm=dict.fromkeys(TYPES, product),
        grouped=GroupedParameters(fraction=1.0, group_s=0.0, contract_m=1.0),
        attention={"forward": core, "backward": core},
        unfused=UnfusedParameters(forward_bytes=8.0, backward_bytes=14.0, launch_s=launch_s),
        memory=dict.fromkeys(FAMILIES, MemoryParameters(bandwidth=1.0, launch_s=launch_s)),
        tile={},
        tile_attention={},
    )


FLOPS = Roofline(device=device(rate=1.0, hbm=NEVER), calibration=calibration())
"""Its seconds are the FLOP of 16-bit products."""
BYTES = Roofline(device=device(rate=NEVER, hbm=1.0), calibration=calibration())
"""Its seconds are bytes of memory traffic."""
LAUNCHES = Roofline(device=device(rate=NEVER, hbm=NEVER), calibration=calibration(launch_s=1.0))
"""Its seconds are launches."""


def links() -> tuple[LinkCalibration, ...]:
    """Return links without latency, which rings, exchanges and messages fill wholly."""
    prepare = WireProtocol(name="Simple", launch=0.0, hop_factor=0.0, efficiency=1.0)
    return (
        LinkCalibration(
            name="toy", protocols=(prepare,), algorithms=("ring", "direct_exchange", "p2p"), tiers=("toy",)
        ),
    )


def costs(software: SoftwareFactors | None = None, shared: SharedFactors | None = None) -> Costs:
    """Return the cost models of the toy: nothing is lost but what `software` and `shared` say."""
    runs = RunCalibration(
        name="toy",
        date="2026-11-22",
        source="round numbers",
        shared=shared or SharedFactors(),
        software={"megatron-core": software or SoftwareFactors()},
    )
    return Costs(calibration=runs, kernels={"toy": calibration()}, links=links())


def cluster(num_devices: int, *tiers: Tier) -> Cluster:
    """Return toys on one switch, or on the tiers given."""
    one = Tier(name="toy", size=0, bandwidth=LINK, latency=0.0)
    return Cluster(
        name="toy", device=device(), num_devices=num_devices, devices_per_node=8, tiers=tiers or (one,)
    )


def layout(strategy: Layout, seq_len: float, precision: Precision | None = None) -> ShardingRules:
    """Return the rules of one strategy."""
    degrees, choices = split_layout(strategy)
    return ShardingRules(
        degrees=degrees, choices=choices, precision=precision or Precision(), seq_len=seq_len
    )


def counted(block: Block, currency: Roofline) -> dict[str, tuple[float, ...]]:
    """Return what every operator with kernels costs in a currency: forward, input gradient, weight gradient."""
    result = {}
    for operator in block.operators:
        work = [[op for op in getattr(operator, item) if not isinstance(op, Collective)] for item in PASSES]
        if any(work):
            result[operator.name] = tuple(float(sum(currency.seconds(op) for op in ops)) for ops in work)
    return result


def messages(block: Block, rules: ShardingRules) -> list[tuple[str, str, str, str, float]]:
    """Return (operator, pass, collective, axis, bytes) of every message of a block among several ranks."""
    ranks = {"tp_cp": rules.degrees.tp * rules.degrees.cp}
    return [
        (operator.name, item, op.kind, op.axis, float(op.num_bytes))
        for operator in block.operators
        for item in PASSES
        for op in getattr(operator, item)
        if isinstance(op, Collective) and (ranks.get(op.axis) or rules.degree(op.axis)) > 1.0
    ]


def needing_transposes(roofline: Roofline) -> Roofline:
    """Return the same currency of a device whose 8-bit products read operands along rows only."""
    return replace(roofline, device=replace(roofline.device, architecture="hopper"))
