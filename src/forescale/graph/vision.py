"""Blocks of a vision tower: its transformer, made as a language model's is, and the projector behind it.

Every image is a sequence of its own, so a micro-batch has as many of these as images. All of it stands on the first
stage; context-parallel ranks each run the whole tower, and sequence parallelism leaves it alone (Megatron-LM,
examples/multimodal/model.py: "Vision model and projection do not use SP/CP yet").
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from forescale.graph.ffn import activation, two_layers
from forescale.graph.layer import block_name, embedding_block, layer_block
from forescale.graph.modules import elementwise, gather_sequence, linear, norm, scatter_sequence
from forescale.graph.operator import Block, Builder, Work
from forescale.graph.ops import Collective
from forescale.graph.recompute import fed
from forescale.graph.sharding import Extent, ShardingRules
from forescale.numeric import Numeric, summed
from forescale.spec.model import Vision
from forescale.spec.workload import FrozenPart, Trainable

NOTHING = Trainable()
EVERYTHING = Trainable(frozen=("embedding", "attention", "ffn", "moe", "norm", "head"))
"""What is frozen in the layout of a tower, or of a projector."""


def vision_blocks(vision: Vision, sharding: ShardingRules) -> tuple[Block, ...]:
    """Return the patch embedding, the layers by kind, and the projector."""
    encoder, layout = vision.encoder, _layout(vision, sharding, "vision")
    start = replace(embedding_block(encoder, layout), name="vision embedding")
    layers = (
        replace(layer_block(encoder, kind, layout), name=f"vision {block_name(kind)}")
        for kind in encoder.layer_kinds
    )
    blocks: list[Block] = []
    trained = False
    for block in (start, *layers, _projector(vision, sharding)):
        needed, trained = _with_gradients(block, of_input=trained)
        blocks.append(needed if sharding.choices.kernels.cuts_vision else _alone(needed))
    return tuple(blocks)


def _alone(block: Block) -> Block:
    """Leave out messages between ranks that each have the whole tower."""

    def computed(work: Work) -> Work:
        return tuple(item for item in work if not isinstance(item, Collective))

    return replace(
        block,
        operators=tuple(
            replace(
                operator,
                forward=computed(operator.forward),
                backward_input=computed(operator.backward_input),
                backward_weight=computed(operator.backward_weight),
            )
            for operator in block.operators
        ),
    )


def _layout(vision: Vision, sharding: ShardingRules, part: FrozenPart) -> ShardingRules:
    """Return the layout of images, which only tp may cut."""
    degrees, images = sharding.degrees, sharding.images
    patches = vision.encoder.patches
    return replace(
        sharding,
        degrees=replace(
            degrees,
            tp=degrees.tp if sharding.choices.kernels.cuts_vision else 1.0,
            cp=1.0,
            ep=1.0,
            etp=1.0,
            micro_batch_size=degrees.micro_batch_size * float(images.count * vision.num_tiles(images)),
        ),
        choices=replace(sharding.choices, sp=False, tp_kind="1d", cp_kind="all_gather"),
        seq_len=float(vision.patches(images) + (0 if patches is None else patches.class_tokens)),
        document_len=None,
        trainable=EVERYTHING if sharding.trainable.freezes(part) else NOTHING,
    )


def _with_gradients(block: Block, *, of_input: bool) -> tuple[Block, bool]:
    """Leave out of backward what no trained weight needs; return whether the block's result has a gradient.

    Autograd keeps nothing for what has no trained weight in it or before it, and makes no gradient of pixels.
    """
    gradients = set(fed(block.operators)) if of_input else set()
    trained = {parameter.name.rpartition(".")[0] for parameter in block.parameters if not parameter.frozen}
    operators = []
    for operator in block.operators:
        passes_on = not gradients.isdisjoint(operator.reads)
        is_norm = operator.name in trained and not operator.backward_weight  # whose one pass makes both
        local = is_norm or bool(operator.backward_weight)
        if passes_on or local:
            gradients.update(operator.writes)
        operators.append(
            replace(
                operator,
                part="vision",
                backward_input=operator.backward_input if passes_on or is_norm else (),
                saves=operator.saves if passes_on or local else (),
                backward_temporaries=operator.backward_temporaries if passes_on or local else (),
            )
        )
    return replace(block, operators=tuple(operators)), not gradients.isdisjoint(operators[-1].writes)


def _projector(vision: Vision, sharding: ShardingRules) -> Block:
    """Return the tower's last norm, its projectors, and the writing of their results into the sequence."""
    encoder, layout = vision.encoder, _layout(vision, sharding, "vision")
    b, h = Builder(sharding=layout, part="head"), float(encoder.hidden_size)
    source = b.tensor("vision.stream", layout.tokens() * h)
    if encoder.final_norm:
        norm(
            b,
            "vision.norm",
            source=source,
            result="vision.result",
            tokens=layout.tokens(),
            width=h,
            kind=encoder.norm,
            narrow=False,
        )
        source = "vision.result"
    seen = vision.patches(sharding.images) // vision.merge**2
    b.sharding = replace(_layout(vision, sharding, "projector"), seq_len=float(seen))
    patches = float(vision.merge**2) * b.sharding.tokens()
    wide = float(vision.width)
    rows, width = (b.sharding.tokens(), wide) if vision.norms_merged else (patches, h)
    results = [_projected(b, vision, "projector", source, rows=rows, width=width)]
    for level in range(vision.num_deepstack):
        name = f"projector.deepstack_{level}"
        source = b.tensor(f"{name}.input", b.sharding.tokens() * wide)
        results.append(_projected(b, vision, name, source, rows=b.sharding.tokens(), width=wide))
    if vision.tiles is not None and vision.tiles.rows_end:
        b.parameter("projector.row_end", ("rank", 1.0), ("hidden", float(vision.projector[-1])))
    tokens = b.tensor("vision.tokens", summed(b.tensors[result].elements for result in results))
    moved = 3.0 * b.bytes_of(tokens)
    reads = tuple(results)
    elementwise(b, "vision.insert", reads=reads, writes=(tokens,), forward_bytes=moved, backward_bytes=moved)
    return b.block("projector", "vision.stream")


def _projected(b: Builder, vision: Vision, name: str, source: str, *, rows: Numeric, width: float) -> str:
    """Append one projector: patches merged, a norm of `rows` of `width`, linear layers with activations between."""
    tokens = b.sharding.tokens()
    if vision.pools:
        pooled, rows = b.tensor(f"{name}.pooled", tokens * width), tokens
        moved = b.bytes_of(source, pooled)
        reads = (source,)
        elementwise(
            b, f"{name}.pool", reads=reads, writes=(pooled,), forward_bytes=moved, backward_bytes=moved
        )
        source = pooled
    if (kind := vision.projector_norm) is not None:
        result = f"{name}.normed"
        norm(
            b, f"{name}.norm", source=source, result=result, tokens=rows, width=width, kind=kind, narrow=False
        )
        source = result
    widths = (vision.width, *vision.projector)
    for place, (inner, outer) in enumerate(pairwise(widths)):
        last = place + 2 == len(widths)
        source = _linear(
            b, f"{name}.{place}", vision, source, (inner, outer), split_after=place % 2 == 1, last=last
        )
        if not (last or (vision.projector_merges and place == 0)):
            activated = b.tensor(f"{name}.{place}.activated", b.tensors[source].elements)
            activation(b, f"{name}.{place}.activation", source, activated, gated=False)
            source = activated
    return _gated(b, vision, name, source) if vision.projector_ffn else source


def _gated(b: Builder, vision: Vision, name: str, source: str) -> str:
    """Append a layer norm, an activation and a gated feed-forward."""
    rows, width, elements = b.sharding.tokens(), float(vision.projector[-1]), b.tensors[source].elements
    normed, activated = b.tensor(f"{name}.normed_result", elements), b.tensor(f"{name}.activated", elements)
    norm(
        b,
        f"{name}.result_norm",
        source=source,
        result=normed,
        tokens=rows,
        width=width,
        kind="layer",
        narrow=False,
    )
    activation(b, f"{name}.activation", normed, activated, gated=False)
    result, inner = b.tensor(f"{name}.ffn_result", elements), float(vision.projector_ffn)
    two_layers(b, f"{name}.ffn", width, width=inner, gated=True, bias=False, source=activated, result=result)
    return result


def _linear(
    b: Builder,
    name: str,
    vision: Vision,
    source: str,
    sizes: tuple[int, int],
    *,
    split_after: bool,
    last: bool,
) -> str:
    """Append one linear layer; of two in a row tp cuts the outputs of the first and the inputs of the second."""
    sharding, tokens = b.sharding, b.sharding.tokens()
    inputs: Extent = ("ffn" if split_after else "hidden", float(sizes[0]))
    outputs: Extent = ("hidden" if split_after or last else "ffn", float(sizes[1]))
    if outputs[0] == "ffn":
        source = gather_sequence(b, f"{name}.gather", source=source, width=inputs[1], feeds=name)
    result = b.tensor(f"{name}.result", tokens * outputs[1] / sharding.split(outputs[0]))
    bias = vision.merging_bias if vision.projector_merges and name.endswith(".0") else vision.projector_bias
    linear(b, name, source=source, result=result, rows=tokens, inputs=inputs, outputs=outputs, bias=bias)
    if split_after:
        scatter_sequence(b, f"{name}.scatter", source=result, result=result, width=outputs[1])
    return result
