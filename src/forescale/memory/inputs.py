"""What memory follows from: what all candidates share, and the numbers of each."""

from __future__ import annotations

from msgspec.structs import replace

from forescale.cost.anchor import Anchor
from forescale.cost.calibration import RunFactors
from forescale.graph.per_block import PerBlock, RecomputeSplit
from forescale.graph.sharding import Degrees, ShardingRules, StructuralOptions
from forescale.memory.in_flight import InFlight
from forescale.memory.liveness import BlockBytes
from forescale.memory.overhead import Outside, Overhead, overhead_of, recorded_overhead
from forescale.memory.parameters import Sharded
from forescale.numeric import Numeric
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.spec.workload import Workload, num_microbatches
from forescale.struct import Struct


class EvalContext(Struct, frozen=True, kw_only=True):
    """What all candidates of one evaluation share."""

    model: Model
    cluster: Cluster
    workload: Workload
    choices: StructuralOptions
    run: RunFactors
    """What a run loses against kernels alone."""
    anchor: Anchor | None = None
    """What was measured of the model's memory."""

    @property
    def overhead(self) -> Overhead:
        """What a device holds beyond what is allocated."""
        usual = overhead_of(
            self.cluster.device,
            self.choices.allocator,
            varied=self.workload.varied_lengths,
            loads_all=self.choices.kernels.loads_all_kernels,
        )
        if self.model.traces and self.cluster.device.vendor == "NVIDIA":
            usual = recorded_overhead(usual, varied=self.workload.varied_lengths)
        return usual if self.anchor is None else replace(usual, anchor=self.anchor)

    def sharding(self, degrees: Degrees) -> ShardingRules:
        """Return the rules by which candidates of some degrees lay out tensors."""
        return ShardingRules.from_workload(self.workload, degrees, self.choices)

    def num_microbatches(self, degrees: Degrees) -> Numeric:
        """Return the micro-batches of one step."""
        return num_microbatches(
            global_batch_size=float(self.workload.global_batch_size),
            dp=degrees.dp,
            micro_batch_size=degrees.micro_batch_size,
        )


class StateBytes(Struct, frozen=True, kw_only=True):
    """What stands on one device throughout forward and backward, and what the update needs beside."""

    weights: Numeric
    gradients: Numeric
    optimizer: Numeric
    frozen: Numeric = 0.0
    """Of the weights, those that are not trained."""
    update: Numeric = 0.0
    """What exists when backward is over alone: fp32 gradients of the update, or whole gradients as they are reduced."""
    updated: Numeric = 0.0
    """Parameters that the device updates, those whose states it holds."""
    copied: Numeric = 0.0
    """Parameters that the host updates and the device copies from master copies that stay with it."""
    received: Numeric = 0.0
    """Where updated parameters are received, in flat tensors."""
    narrow: Numeric = 0.0
    """What weights in 8 or 4 bits add."""
    buffers: Numeric = 0.0
    """Gathered parameters, workspaces, dummy gradients, buckets."""
    at_layers: Numeric = 0.0
    """What is gathered beyond that while a layer is in backward,"""
    at_loss: Numeric = 0.0
    """while the loss is taken,"""
    at_head: Numeric = 0.0
    """and while the head's gradient is reduced."""
    lasting: Numeric = 0.0
    """Of the buffers, what the update finds still there: workspaces, dummy gradients, buckets of replicas."""
    aside: Numeric = 0.0
    """Where gathers are received, in memory of their own stream."""
    host: Numeric = 0.0
    """Held by the host instead, with what its update needs."""
    host_updated: Numeric = 0.0
    """Parameters that the host updates."""
    host_optimizer: Numeric = 0.0
    """Bytes of master copies and moments that the host updates."""
    host_weights: Numeric = 0.0
    """Bytes of shards that every pass reads from the host, in the type that is gathered."""
    host_gradients: Numeric = 0.0
    """Bytes of shards that every backward writes to the host."""

    def total(self) -> Numeric:
        """Return the bytes of weights, gradients and optimizer states together: a lower bound of the peak."""
        return self.weights + self.gradients + self.optimizer

    def least(self, *, paged: bool) -> Numeric:
        """Return a lower bound of them on the device, from which `paged` optimizer states may move to the host."""
        return self.weights + self.gradients if paged else self.total()


class MemoryInputs(Sharded, frozen=True, kw_only=True):
    """What the memory of every candidate is put together from."""

    states: StateBytes
    outside: Outside
    blocks: PerBlock[RecomputeSplit[BlockBytes]]
    in_flight: InFlight
