"""Memory that is neither state nor saved activation: gathered parameters, dummy gradients, workspaces."""

from __future__ import annotations

import numpy as np

from forescale.files import packaged
from forescale.formula import formula, total
from forescale.graph.layout import Choices, several, state_shards
from forescale.graph.operator import NARROWEST_GRADIENT_BYTES
from forescale.memory.inputs import Setting
from forescale.memory.liveness import largest
from forescale.memory.parameters import Elements, Holding, Sharded
from forescale.numeric import Numeric, smaller, summed
from forescale.spec.cluster import Device
from forescale.spec.strategy import Kernels, Reshard
from forescale.spec.workload import STORAGE_BYTES


def standing_buffers(setting: Setting, sharded: Sharded) -> Numeric:
    """Return the buffers that exist throughout forward and backward."""
    choices, kernels, device = setting.choices, setting.choices.kernels, setting.cluster.device
    parts: dict[str, Numeric] = {
        "gathered parameters": _gathered(setting, sharded),
        "workspaces of libraries": library_workspace_bytes(device, kernels, grouped=setting.model.is_moe),
    }
    if overlapped := overlap_workspace_bytes(device, choices):
        parts["workspaces of overlapped products"] = several(degree=sharded.degrees.tp) * overlapped
    if kernels.accumulate_in_product and kernels.dummy_gradients:
        parts["dummy gradients"] = _dummy_gradients(setting, sharded)
    parts["buckets"] = bucket_bytes(
        elements=kernels.bucket_elements,
        element_bytes=STORAGE_BYTES[setting.workload.precision.gradients],
        zero=sharded.degrees.zero,
    )
    return total(parts, name="standing buffers", unit="byte")


@formula(
    unit="byte",
    source="DeepSpeed, runtime/zero/stage_1_and_2.py and stage3.py: a buffer of reduce_bucket_size elements",
)
def bucket_bytes(*, elements: float, element_bytes: float, zero: Numeric) -> Numeric:
    """Elements × bytes from stage 1."""
    return np.where(np.asarray(zero) >= 1, elements * element_bytes, 0.0)


def _dummy_gradients(setting: Setting, sharded: Sharded) -> Numeric:
    """Return the cached dummy gradients of the distinct weight shapes on each stage."""
    users: dict[str, tuple[int, ...]] = {}
    elements: dict[str, Numeric] = {}
    counts = [*sharded.stages.counts, sharded.stages.first]
    for kind, block in enumerate(sharded.held.layers):
        for name, size in block.products.items():
            users[name] = (*users.get(name, ()), kind)
            elements.setdefault(name, size)
    for block in sharded.held.vision_layers:
        for name, size in block.products.items():
            users[f"vision.{name}"] = (len(sharded.held.layers),)
            elements[f"vision.{name}"] = size
    result: Numeric = 0.0 * sharded.stages.first
    for kinds in dict.fromkeys(users.values()):
        shapes = {name: elements[name] for name, using in users.items() if using == kinds}
        layers = summed(counts[kind] for kind in kinds)
        result = result + dummy_gradient_bytes(
            elements=total(shapes, name="weights of distinct shape", unit="parameter"),
            element_bytes=max(STORAGE_BYTES[setting.workload.precision.parameters], NARROWEST_GRADIENT_BYTES),
            layers=layers,
            zero=sharded.degrees.zero,
        )
    return result


def _gathered(setting: Setting, sharded: Sharded) -> Numeric:
    """Return the gathered parameters and unreduced gradients of the largest block, or weight, at stage 3."""
    degrees, stages, precision = sharded.degrees, sharded.stages, setting.workload.precision
    buffers: Numeric = 0.0 * stages.first
    shards = state_shards(degrees, setting.choices.tp_kind)
    reduced = STORAGE_BYTES[precision.gradients]
    each = setting.choices.kernels.gathers_each_weight
    for present, copies, sent, trained in _groups(setting, sharded):
        both: Numeric = 0.0
        for weights, gradients, ranks in (
            (sent.dense, trained.dense, shards),
            (sent.expert, trained.expert, degrees.expert_shards),
        ):
            both = both + gathered_parameter_bytes(
                parameters=weights,
                trained=gradients,
                copies=copies,
                reduced_bytes=0.0 if each else reduced,  # each is reduced as the product made it
                shards=ranks,
                zero=degrees.zero,
            )
        buffers = largest(first=buffers, second=present * both)
    reshard, zero = setting.choices.reshard, degrees.zero
    whole = sharded.sent(precision)
    of_groups = (
        (whole.dense, sharded.trained.dense, shards),
        (whole.expert, sharded.trained.expert, degrees.expert_shards),
    )
    if not isinstance(reshard, str):
        ranks = float(reshard)
        copied = (
            resharded_copy_bytes(parameters=parameters, ranks=ranks, shards=own, zero=zero)
            for parameters, _, own in of_groups
        )
        return buffers + summed(copied)
    never = summed(
        whole_parameter_bytes(
            parameters=parameters, trained=trained, reduced_bytes=reduced, shards=own, zero=zero
        )
        for parameters, trained, own in of_groups
    )
    return resharded_bytes(always=buffers, never=never, whole=kept_whole(pp=degrees.pp, reshard=reshard))


def _groups(setting: Setting, sharded: Sharded) -> list[tuple[Numeric, float, Elements, Elements]]:
    """Return what is gathered at once: where it is, in how many copies, its 16-bit numbers, and what has gradients."""
    held, last, precision = sharded.held, sharded.stages.last, setting.workload.precision
    units: list[tuple[Numeric, Holding]] = [(1.0, block) for block in held.layers]
    units += [(sharded.stages.first, block) for block in held.vision_layers]
    if setting.choices.kernels.gathers_each_weight:
        weights = [(present, 2.0, block.largest, block.largest_trained) for present, block in units]
        head = held.head.sent(precision).vocabulary, held.head.trained.vocabulary
    else:
        weights = [(present, 2.0, block.sent(precision), block.trained) for present, block in units]
        head = _with_vocabulary(held.head.sent(precision)), _with_vocabulary(held.head.trained)
    sent, trained = (Elements(dense=elements, expert=0.0) for elements in head)
    return [*weights, (last, 1.0, sent, trained)]


def _with_vocabulary(elements: Elements) -> Numeric:
    return elements.dense + elements.vocabulary


def gathered_aside(setting: Setting, sharded: Sharded) -> Numeric:
    """Return what the largest group takes where it is received: a block, or what stands at the root of the model."""
    if not setting.choices.kernels.gathers_aside:
        return 0.0
    stages, degrees = sharded.stages, sharded.degrees
    held = sharded.held.map(lambda block: block.sent(setting.workload.precision))
    shards = state_shards(degrees, setting.choices.tp_kind)
    groups = [(block.dense, shards) for block in held.layers]
    groups += [(block.expert, degrees.expert_shards) for block in held.layers]
    groups += [(stages.first * block.dense, shards) for block in held.vision_layers]
    ends = [held.embedding.dense, *(block.dense for _, block in (*held.vision[:1], *held.vision[-1:]))]
    roots: list[Numeric] = [stages.first * summed(ends), stages.last * _with_vocabulary(held.head)]
    if not setting.choices.kernels.gathers_ends_apart:
        roots = [summed(roots)]
    buffers: Numeric = 0.0 * stages.first
    for parameters, ranks in [*groups, *((root, shards) for root in roots)]:
        own = gather_stream_bytes(parameters=parameters, shards=ranks, zero=degrees.zero)
        buffers = largest(first=buffers, second=own)
    return buffers


@formula(unit="1", source="torchtitan: parallelism.fsdp_reshard_after_forward")
def kept_whole(*, pp: Numeric, reshard: Reshard) -> Numeric:
    """1 where gathered parameters stay until the step ends: under never, and by default with several stages."""
    if reshard == "default":
        return np.where(np.asarray(pp) > 1, 1.0, 0.0)
    return 1.0 if reshard == "never" else 0.0


@formula(
    unit="byte",
    source="Transformer Engine, module/base.py get_dummy_wgrad: one cached tensor per shape of a weight "
    "whose gradient is accumulated elsewhere",
)
def dummy_gradient_bytes(
    *, elements: Numeric, element_bytes: float, layers: Numeric, zero: Numeric
) -> Numeric:
    """Elements × bytes, where a layer on the stage has the shape and gradients accumulate (stage < 3)."""
    return smaller(layers, 1.0) * np.where(np.asarray(zero) < 3, elements * element_bytes, 0.0)


@formula(
    unit="byte",
    source="PyTorch FSDP2, torch/distributed/fsdp/_fully_shard: parameters of this block and the one prefetched; "
    "its gradients in the compute type, copied to the type and order of the reduction",
)
def gathered_parameter_bytes(
    *,
    parameters: Numeric,
    trained: Numeric,
    copies: float,
    reduced_bytes: float,
    shards: Numeric,
    zero: Numeric,
) -> Numeric:
    """Parameters × 2·copies at stage 3, and trained × (2 + bytes of the reduction) from 2, with several shards, else 0.

    Parameters count as 16-bit numbers.
    """
    gathered = np.where(np.asarray(zero) >= 3, 2.0 * copies, 0.0)
    needed = (np.asarray(zero) >= 2) & (np.asarray(shards) > 1)
    return np.where(needed, parameters * gathered + trained * (2.0 + reduced_bytes), 0.0)


@formula(
    unit="byte",
    source="PyTorch 2.13, distributed/pipelining/stage.py: FSDP2 neither reduces nor reshards before a stage's last "
    "backward (set_requires_gradient_sync, set_reshard_after_backward); gradients add up in the reduction's type",
)
def whole_parameter_bytes(
    *, parameters: Numeric, trained: Numeric, reduced_bytes: float, shards: Numeric, zero: Numeric
) -> Numeric:
    """Parameters × 2 at stage 3, and trained × bytes of accumulated gradients from 2, with several shards, else 0.

    Of gradients what is beyond their shards, which come to be as the whole ones go. Parameters count as 16-bit numbers.
    """
    gathered = np.where(np.asarray(zero) >= 3, 2.0, 0.0)
    needed = (np.asarray(zero) >= 2) & (np.asarray(shards) > 1)
    return np.where(needed, parameters * gathered + trained * (reduced_bytes * (1.0 - 1.0 / shards)), 0.0)


@formula(
    unit="byte", source="PyTorch FSDP2: reshard_after_forward as a number of ranks; ZeRO++, arXiv:2306.10209"
)
def resharded_copy_bytes(*, parameters: Numeric, ranks: float, shards: Numeric, zero: Numeric) -> Numeric:
    """2 bytes × parameters / min(ranks, shards): what stays of a stage's parameters between forward and backward."""
    needed = (np.asarray(zero) >= 3) & (np.asarray(shards) > 1)
    return np.where(needed, 2.0 * parameters / smaller(ranks, shards), 0.0)


@formula(unit="byte", source="torchtitan: parallelism.fsdp_reshard_after_forward")
def resharded_bytes(*, always: Numeric, never: Numeric, whole: Numeric) -> Numeric:
    """`never` where gathered parameters stay whole through the step, else `always`."""
    return np.where(np.asarray(whole) > 0, never, always)


@formula(
    unit="byte",
    source="PyTorch FSDP2, torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py: gathers are received in memory "
    "of their own stream and copied out; the allocator keeps streams apart",
)
def gather_stream_bytes(*, parameters: Numeric, shards: Numeric, zero: Numeric) -> Numeric:
    """2 bytes × parameters of the largest group at stage 3 with several shards, else 0."""
    needed = (np.asarray(zero) >= 3) & (np.asarray(shards) > 1)
    return np.where(needed, 2.0 * parameters, 0.0)


def library_workspace_bytes(device: Device, kernels: Kernels, *, grouped: bool) -> float:
    """Return the workspaces of one process [byte]; with experts, its `grouped` products have streams.

    Devices whose software allocates none through PyTorch (TPUs, Gaudi, Trainium) have none.
    """
    table = packaged("calibrations/memory/workspaces")
    if device.vendor not in table["vendors"]:
        return 0.0
    torch, engine = table["pytorch"], table["transformer_engine"]
    usual = torch["bytes"].get(device.architecture, torch["other"])
    fused = engine["bytes"].get(device.architecture, engine["other"])
    return workspace_bytes(
        handle_bytes=max(usual, torch["deterministic"]) if kernels.deterministic else usual,
        handles=torch["handles"],
        stream_bytes=fused if kernels.fused else 0.0,
        streams=1 + (engine["streams"] if grouped and kernels.grouped_experts else 0),
    )


def overlap_workspace_bytes(device: Device, choices: Choices) -> float:
    """Return the workspaces of products that run in chunks beside their tensor-parallel collective [byte]."""
    table = packaged("calibrations/memory/workspaces")
    if device.vendor not in table["vendors"] or not (choices.overlapped.tensor and choices.kernels.fused):
        return 0.0
    engine = table["transformer_engine"]
    return workspace_bytes(
        handle_bytes=0.0,
        handles=0.0,
        stream_bytes=engine["bytes"].get(device.architecture, engine["other"]),
        streams=engine["overlap_streams"],
    )


@formula(
    unit="byte",
    source="PyTorch CublasHandlePool.cpp; Transformer Engine module/base.py get_multi_stream_cublas_workspace",
)
def workspace_bytes(*, handle_bytes: float, handles: float, stream_bytes: float, streams: float) -> float:
    """Bytes per handle × handles + bytes per stream × streams."""
    return handle_bytes * handles + stream_bytes * streams
