"""The model of a row: its shape columns, completed by the catalogue model or architecture of its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

from msgspec.structs import replace
from scripts.rows.columns import Notes
from scripts.rows.tables import all_matches, first_match

from forescale.catalogue.models import load_model
from forescale.errors import UnknownNameError
from forescale.files import Row
from forescale.spec.attention import Attention, FullAttention, LatentAttention
from forescale.spec.layout import Layout
from forescale.spec.model import DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.units import TB
from forescale.validation.case import InexpressibleError
from forescale.validation.published import published_flops

_HEAD_DIM = 128
"""Head size where a row names none: GPT-3 6.7B and above (Brown et al. 2020, Table 2.1)."""


def model_of(row: Row, notes: Notes) -> Model:
    """Return the model of `row`; what had to be assumed is appended to `notes`.

    Raises
    ------
    InexpressibleError
        If neither the row nor the catalogue says enough.
    """
    name = row.text("model")
    traits = first_match("architectures", name)
    template = catalogue_model(_slug(name))
    if template is not None:
        model = _from_template(row, template, traits, notes)
    elif row.integer("layers") and row.integer("hidden"):
        model = _from_columns(row, traits, notes)
    else:
        raise InexpressibleError(f"the shape of {name} is in neither the row nor the catalogue")
    return _with_mtp(row, model, template, notes)


@cache
def catalogue_model(name: str) -> Model | None:
    """Return the catalogue model of a name; None where it means none of them."""
    try:
        return load_model(name)
    except UnknownNameError:
        return None


def _slug(name: str) -> str:
    return re.sub(r"\s*\(.*?\)|\s+proxy\b", "", name).strip().lower().replace(" ", "-")


def _from_template(row: Row, template: Model, traits: Mapping[str, Any], notes: Notes) -> Model:
    """Return `template` with every extent that the row states put in its place."""
    num_layers = row.integer("layers") or template.num_layers
    integer = row.integer("first_k_dense")
    first = traits.get("first_k_dense") if integer is None else integer
    leading = template.layers if first is None else _with_dense(template.layers, first)
    instead = traits.get("instead", {})
    norms = {"num_norms": instead["num_norms"]} if "num_norms" in instead else {}
    layers = tuple(replace(_merged(layer, row), **norms) for layer in leading[:num_layers])
    layers += (layers[-1],) * (num_layers - len(layers))
    model = replace(
        template.text,
        layers=layers,
        hidden_size=row.integer("hidden") or template.hidden_size,
        vocab_size=row.integer("vocab") or instead.get("vocab", template.vocab_size),
        tied_embeddings=instead.get("tied", template.tied_embeddings),
        learned_positions=max(template.learned_positions, row.integer("seq_len") or 0)
        if template.learned_positions
        else 0,
        num_mtp_layers=0,
    )
    changed = [
        f"{label} {getattr(model, label)} instead of {getattr(template, label)}"
        for label in ("num_layers", "hidden_size", "vocab_size")
        if getattr(model, label) != getattr(template, label)
    ]
    if layers[: template.num_layers] != template.layers[: len(layers)]:
        changed.append("heads or feed-forward sizes of the row")
    notes.append(f"catalogue model {template.name}" + (f" with {', '.join(changed)}" if changed else ""))
    return model


def _with_dense(layers: tuple[Layer, ...], first: int) -> tuple[Layer, ...]:
    """Return the layers behind `first` dense ones, where a model's dense layers all come before its experts."""
    dense = [isinstance(layer.ffn, DenseFfn) for layer in layers]
    leading = sum(dense)
    if leading == 0 or leading == len(layers) or not all(dense[:leading]):
        return layers
    return layers[:1] * first + layers[leading:]


CELLS: Mapping[type, Mapping[str, str]] = {
    FullAttention: {"num_heads": "heads", "num_kv_heads": "kv_heads", "head_dim": "head_dim"},
    LatentAttention: {"num_heads": "heads"},
    DenseFfn: {"ffn_hidden_size": "ffn"},
    MoeFfn: {"num_experts": "num_experts", "top_k": "topk", "ffn_hidden_size": "moe_ffn"},
}
"""Fields of a half of a layer, and the columns that state them."""


def _merged(layer: Layer, row: Row) -> Layer:
    """Return `layer` with the row's heads and feed-forward sizes."""
    halves: dict[str, Any] = {"attention": layer.attention, "ffn": layer.ffn}
    for name, half in halves.items():
        columns = CELLS.get(type(half), {})
        message = {field: value for field, column in columns.items() if (value := row.integer(column))}
        shared = row.integer("n_shared_experts")
        if isinstance(half, MoeFfn) and shared is not None:
            message["shared_ffn_hidden_size"] = shared * message.get("ffn_hidden_size", half.ffn_hidden_size)
        if message:
            halves[name] = replace(half, **message)
    return replace(layer, **halves)


def _from_columns(row: Row, traits: Mapping[str, Any], notes: Notes) -> Model:
    """Return the model that the row's columns describe, in the manner of its name's architecture."""
    traits = traits or _guessed_traits(row, notes)
    layers = row.integer("layers") or 0
    vocab = row.integer("vocab")
    if vocab is None:
        vocab = int(traits.get("vocab", 50257))
        notes.append(f"vocabulary of {vocab} assumed")
    positions = traits.get("learned_positions", 0)
    return Model(
        name=row.text("model"),
        hidden_size=row.integer("hidden") or 0,
        layers=_layers(row, layers, traits, notes),
        vocab_size=vocab,
        tied_embeddings=traits.get("tied", False),
        norm=traits.get("norm", "rms"),
        learned_positions=(row.integer("seq_len") or 0) if positions == "seq_len" else positions,
        embedding_norm=traits.get("embedding_norm", False),
        source=row.text("source"),
    )


def _guessed_traits(row: Row, notes: Notes) -> Mapping[str, Any]:
    """Return the architecture of an unknown name: four times as wide means GPT-like, else Llama-like."""
    gpt = row.integer("ffn") == 4 * (row.integer("hidden") or 0) and row.text("family") != "moe"
    notes.append(f"architecture of {row.text('model')} unknown: {'GPT' if gpt else 'Llama'}-like assumed")
    return {"gated": not gpt, "norm": "layer" if gpt else "rms", "bias": gpt, "tied": gpt}


def _layers(row: Row, count: int, traits: Mapping[str, Any], notes: Notes) -> tuple[Layer, ...]:
    attention = _attention(row, traits, notes)
    norms = {"num_norms": traits.get("num_norms", 2), "parallel": traits.get("parallel", False)}
    bias = traits.get("bias", False)
    dense = Layer(
        attention=attention,
        ffn=DenseFfn(ffn_hidden_size=row.integer("ffn") or 0, gated=traits.get("gated", True), bias=bias),
        **norms,
    )
    if not row.integer("num_experts"):
        return (dense,) * count
    first = min(row.integer("first_k_dense") or 0, count)
    routed = Layer(attention=attention, ffn=_moe(row, traits), **norms)
    return (dense,) * first + (routed,) * (count - first)


def _attention(row: Row, traits: Mapping[str, Any], notes: Notes) -> Attention:
    hidden, heads = row.integer("hidden") or 0, row.integer("heads")
    head_dim = row.integer("head_dim")
    if heads is None:
        head_dim = head_dim or min(_HEAD_DIM, hidden)
        heads = hidden // head_dim
        notes.append(f"{heads} heads of {head_dim} assumed")
    if row.flag("mla"):
        if "mla" not in traits:
            msg = f"the latent ranks of {row.text('model')} are in neither the row nor the catalogue"
            raise InexpressibleError(msg)
        return LatentAttention(num_heads=heads, **traits["mla"])
    bias = traits.get("bias", False)
    return FullAttention(
        num_heads=heads,
        num_kv_heads=row.integer("kv_heads") or heads,
        head_dim=head_dim or hidden // heads,
        qkv_bias=traits.get("qkv_bias", bias),
        output_bias=traits.get("output_bias", bias),
        qk_norm=traits.get("qk_norm", "none"),
        rotary=traits.get("rotary", True),
    )


def _moe(row: Row, traits: Mapping[str, Any]) -> Ffn:
    width = row.integer("moe_ffn") or row.integer("ffn") or 0
    return MoeFfn(
        num_experts=row.integer("num_experts") or 1,
        top_k=row.integer("topk") or 1,
        ffn_hidden_size=width,
        gated=traits.get("gated", True),
        bias=traits.get("bias", False),
        shared_ffn_hidden_size=(row.integer("n_shared_experts") or 0) * width,
        shared_gate=traits.get("shared_gate", False),
        score_bias=traits.get("score_bias", False),
    )


def _with_mtp(row: Row, model: Model, template: Model | None, notes: Notes) -> Model:
    """Return `model` with the multi-token-prediction layers that the row says ran, or counts in its FLOPs."""
    remark = row.text("notes") + " " + row.text("model")
    if re.search(r"plus MTP|\+ MTP|with MTP", remark) and not re.search(r"w/o MTP|no MTP", remark):
        notes.append("one multi-token-prediction layer, as the row says")
        return replace(model, num_mtp_layers=1)
    if template is None or not template.num_mtp_layers or not (rate := row.number("measured_tflops_per_gpu")):
        return model
    tokens, step = row.number("measured_tokens_per_s_per_gpu"), row.number("measured_step_s")
    if not tokens and step:
        whole = (row.integer("global_batch") or 0) * (row.integer("seq_len") or 0)
        tokens = whole / (step * (row.integer("n_gpus") or 1))
    if not tokens:
        return model
    convention, counted = all_matches("conventions", row.text("tflops_convention")), rate * TB / tokens
    with_mtp = replace(model, num_mtp_layers=template.num_mtp_layers, mtp_layer=template.mtp_layer)
    without, more = (
        published_flops(item, row.integer("seq_len") or 0, Layout(), convention) for item in (model, with_mtp)
    )
    if abs(more - counted) >= abs(without - counted):
        return model
    notes.append("multi-token prediction as the model has it, which the FLOPs that the row reports count")
    return with_mtp
