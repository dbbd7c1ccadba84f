"""Notes of a projection on what of its layout or workload has no effect, or another one than expected."""

from __future__ import annotations

from collections.abc import Iterator

from forescale.formula import number_of
from forescale.projection.result import left_out
from forescale.question import Note
from forescale.spec.attention import FullAttention
from forescale.spec.constraints import freezable
from forescale.spec.layout import Layout, Routing
from forescale.spec.model import Model, MoeFfn
from forescale.spec.space import recompute_modules
from forescale.spec.workload import EXCEPTIONS, Workload

FLASH_RECOMPUTES = (
    "flash attention keeps no scores and recomputes them in its own backward: selective recompute of core_attn frees "
    "next to nothing and runs the forward kernel twice; give other modules (--recompute-modules) or full"
)


def notes_of(model: Model, layout: Layout, workload: Workload) -> tuple[Note, ...]:
    """Return the notes, first what of the model is left out."""
    notes = [*left_out(model)]
    if model.moe is None and (layout.routing != Routing() or layout.dispatcher != "all_to_all"):
        text = f"{model.name} has no experts: routing and dispatcher change nothing"
        notes.append(Note(topic="experts", text=text))
    uneven = layout.routing.imbalance
    if model.moe is not None and layout.ep > 1 and uneven > (most := _most_uneven(model.moe, layout.ep)):
        text = (
            f"no rank of ep {layout.ep} can receive {uneven:g} times the mean with {model.moe.top_k} of "
            f"{model.moe.num_experts} experts a token; {most:g} was used"
        )
        notes.append(Note(topic="experts", text=text))
    if layout.schedule is not None and layout.pp == 1:
        text = f"pp is 1, so there is no pipeline: schedule {layout.schedule} changes nothing"
        notes.append(Note(topic="schedule", text=text))
    notes += [Note(topic="model", text=text) for text in _without_effect(model, layout, workload)]
    notes += _copied_heads(model, layout)
    if layout.flash_attention and layout.recompute.modules == ("core_attn",):
        notes.append(Note(topic="recompute", text=FLASH_RECOMPUTES))
    if workload.document_len is not None and workload.document_len > workload.seq_len:
        text = f"documents of {workload.document_len} tokens are cut at seq_len {workload.seq_len}"
        notes.append(Note(topic="sequence", text=f"{text}: document_len changes nothing"))
    if model.max_seq_len and workload.seq_len > model.max_seq_len:
        notes.append(
            Note(
                topic="sequence",
                text=f"seq_len {workload.seq_len} is beyond the {model.max_seq_len} tokens {model.name} was made for",
            )
        )
    return tuple(notes)


def _most_uneven(moe: MoeFfn, ep: int) -> float:
    from forescale.graph.moe import possible_imbalance

    limits = {"imbalance": float("inf"), "num_experts": float(moe.num_experts), "top_k": float(moe.top_k)}
    return number_of(possible_imbalance(ep=float(ep), **limits))


def _copied_heads(model: Model, layout: Layout) -> Iterator[Note]:
    """Yield a note for the fewest key/value heads of full attention, if there are more tensor-parallel ranks."""
    kinds = {kind.attention for kind in model.layer_kinds if isinstance(kind.attention, FullAttention)}
    spec = min(kinds, key=lambda item: item.num_kv_heads, default=None)
    if spec is None or layout.tp <= spec.num_kv_heads:
        return
    copies = layout.tp / spec.num_kv_heads
    added = 2.0 * model.hidden_size * spec.head_dim * (1.0 - 1.0 / copies)
    text = (
        f"tp {layout.tp} is above the {spec.num_kv_heads} key/value heads of {model.name}: {copies:g} ranks each hold "
        f"and compute the same head, which adds {added:,.0f} parameters of key and value projections to each layer"
    )
    yield Note(topic="attention", text=text)


def _without_effect(model: Model, layout: Layout, workload: Workload) -> Iterator[str]:
    """Yield what a layout or workload recomputes or freezes of parts that a model does not have."""
    for what, names, present in (
        ("recompute.modules", layout.recompute.modules, recompute_modules(model)),
        ("trainable.frozen", workload.trainable.frozen, freezable(model)),
    ):
        if absent := [name for name in names if name not in present]:
            yield f"{model.name} has no {', '.join(absent)}: {what} changes nothing there"
    types = workload.precision
    given = [name for name in EXCEPTIONS if getattr(types, name)]
    if given and not types.is_narrow:
        yield f"no product is in 8 bits or less under precision {types.compute}: {', '.join(given)} has no effect"
    elif types.num_layers_in_bf16 == model.num_layers:
        yield f"all {model.num_layers} layers are in bf16: precision {types.compute} has no effect on them"
