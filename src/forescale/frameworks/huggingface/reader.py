"""Read a Hugging Face `config.json` as a model.

The keys are those of transformers 4 and 5. What an architecture makes of them stands in `decoders`, `hybrid` and
`sparse` beside this module; keys that nobody used are reported, never dropped in silence.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from forescale.errors import ReaderError, SpecError, UnknownKeyError, nearest, wrong_format
from forescale.files import is_folder, parse_json, read_text
from forescale.frameworks.huggingface.decoders import DECODERS
from forescale.frameworks.huggingface.hybrid import HYBRID
from forescale.frameworks.huggingface.keys import SIZES, Keys
from forescale.frameworks.huggingface.recorded import recorded_family, traced_family
from forescale.frameworks.huggingface.sparse import SPARSE
from forescale.frameworks.huggingface.vision import vision_of
from forescale.graph.counts import count_parameters
from forescale.graph.dimensions import essential
from forescale.graph.recorded import (
    missing_defaults,
    recorded_types,
    traceable_types,
    without_uneven_heads,
)
from forescale.positions import says_lines
from forescale.spec.attention import FullAttention
from forescale.spec.model import DenseFfn, Layer, Model, Patches
from forescale.struct import Struct
from forescale.units import format_count

CONFIG_FILE = "config.json"
THINKER = "thinker_config"
"""The part of a Qwen-Omni model that is trained on text, images and sound; what speaks is beside it."""
LAYER_KEYS = frozenset(("num_hidden_layers", "n_layers", "n_layer", "num_layers"))
FAMILIES: Mapping[str, Callable[[Keys], Model]] = MappingProxyType({**DECODERS, **HYBRID, **SPARSE})
"""What reads each `model_type`."""


class ReadModel(Struct, frozen=True, kw_only=True):
    """A model and the keys of its file that do not describe it (token ids, dropout)."""

    model: Model
    ignored: tuple[str, ...]


def supported_model_types() -> tuple[str, ...]:
    """Return every `model_type` that can be read, sorted."""
    return tuple(sorted({*FAMILIES, *recorded_types()}))


def load_huggingface(path: str | Path, *, seq_len: int | None = None) -> ReadModel:
    """Read a `config.json`, or the one inside a folder; the model is named after the folder or the file.

    `seq_len` is the sequence length that a model is traced at if only its code describes it.

    Raises
    ------
    ReaderError
        If the file is missing, cut short, no Hugging Face configuration, or of an unsupported architecture.
    """
    value = Path(path)
    return _load(value / CONFIG_FILE if is_folder(value) else value, seq_len)


@says_lines
def _load(file: Path, seq_len: int | None) -> ReadModel:
    hint = f"give a {CONFIG_FILE} or a folder that holds one"
    config = parse_json(
        read_text(file, hint=hint), file, infinite=True
    )  # state space models have time steps up to it
    if not isinstance(config, dict):
        allowed = "the config.json of a Hugging Face model"
        raise ReaderError(file, wrong_format(allowed, "it holds no JSON object"))
    name = _named_after(file.absolute()) if file.name == CONFIG_FILE else file.stem
    return read_huggingface(config, name=name, where=str(file), seq_len=seq_len)


def _named_after(file: Path) -> str:
    """Return the name of the folder of a configuration; in a cache of the hub that is of a repository."""
    folder = file.parent
    repository = folder.parent.parent.name
    is_cached = folder.parent.name == "snapshots" and repository.startswith("models--")
    return repository.rpartition("--")[2] if is_cached else folder.name


def read_huggingface(
    config: Mapping[str, Any], *, name: str, where: str, seq_len: int | None = None
) -> ReadModel:
    """Read the parsed content of a `config.json`.

    Parameters
    ----------
    config
        The parsed file. Of a multimodal model the part under `text_config` is read, and the vision towers
        that are known; of a Qwen-Omni model those of its thinker.
    name
        Name of the resulting model.
    where
        The file (or other place) that error messages point to.
    seq_len
        Sequence length that the model is traced at if only its code describes it.

    Raises
    ------
    ReaderError
        If the architecture is not supported or a required key is missing or has an impossible value.
    """
    root = Keys(config, where)
    root.get("model_type")
    outer = root.child(THINKER) or root
    keys = _language_part(outer)
    family = _family(keys, str(root.get("model_type")))
    keys = root if family is traced_family else keys
    is_recorded = keys.get("model_type") in recorded_types()
    keys.defaults = missing_defaults(keys.data) if is_recorded else _default_sizes(keys)
    try:
        model = traced_family(keys, seq_len) if family is traced_family else family(keys)
        model = model if model.traces else replace(model, vision=vision_of(outer, model))
        root.refuse_misspelt()
        unread_towers = towers({**outer.unread_parts(), **root.unread_parts()})
        model = replace(
            model,
            name=name,
            source=where,
            left_out=left_out(unread_towers, model) if unread_towers else "",
            config=json.dumps(essential(keys.data)) if is_recorded else model.config,
        )
    except UnknownKeyError:
        raise
    except SpecError as error:
        raise ReaderError(where, error) from error
    return ReadModel(
        model=model,
        ignored=tuple(key for key in root.unread() if key.rpartition(".")[2] not in unread_towers),
    )


def _language_part(outer: Keys) -> Keys:
    """Return the keys of the language model: the file's own, or those of its `text_config` (InternVL: `llm_config`)."""
    kind = str(outer.get("model_type"))
    inner = outer.child("text_config") or outer.child("llm_config")
    if inner is None or (kind in FAMILIES and inner.get("hidden_size") is None):
        return outer
    for shared in ("tie_word_embeddings", "vocab_size"):
        inner.fall_back(shared, outer)
    if inner.get("model_type") is None:
        inner.fall_back("model_type", outer)
    return inner


def _default_sizes(keys: Keys) -> Mapping[str, Any]:
    """Return the default sizes of a type without a recording; lists of layers only for the default number of layers."""
    config, sizes = keys.data, SIZES.get(keys.get("model_type"), {})
    wide = {
        key: value
        for key, value in sizes.items()
        if not isinstance(value, list) or not LAYER_KEYS & {*config}
    }
    return without_uneven_heads(wide, config)


def _family(keys: Keys, outer: str) -> Callable[[Keys], Model]:
    """Return what reads a language model; `outer` is the type of the whole model."""
    kind = keys.get("model_type")
    if kind is None and isinstance(keys.get("workload"), Mapping):
        fix = "write a plan in TOML or YAML (.toml, .yaml)"
        keys.refuse(wrong_format("a model", "it asks a question", fix))
    if not isinstance(kind, str) or not kind:
        keys.refuse(wrong_format("the config.json of a Hugging Face model", "it has no model_type"))
    if kind not in FAMILIES and kind in recorded_types():
        return recorded_family
    has_no_sizes = SIZES.get(kind) == {} and keys.get("hidden_size") is None
    if has_no_sizes and f'"{outer}"' in traceable_types():
        return traced_family
    if kind not in FAMILIES:
        if f'"{outer}"' in traceable_types():
            return traced_family
        close = nearest(kind, FAMILIES)
        hint = f" (nearest: {', '.join(close)})" if close else ""
        extra = (
            ""
            if traceable_types()
            else "with pip install 'forescale[trace]', types of transformers are traced; "
        )
        supported = ", ".join(supported_model_types())
        keys.refuse(f"the architecture {kind!r} is not supported{hint}; {extra}give one of: {supported}")
    return FAMILIES[kind]


WIDTH = ("embed_dim", "hidden_size", "d_model", "width", "n_embd")
DEPTH = ("num_hidden_layers", "depth", "encoder_layers", "num_layers", "n_layer", "layers")
INNER = ("intermediate_size", "encoder_ffn_dim", "ffn_dim", "mlp_dim")


def towers(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, int | None]:
    """Return those of `parts` that hold weights, each with an estimate of its parameters where it can be made."""

    def within(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [part, *(inner for inner in part.values() if isinstance(inner, Mapping))]

    return {
        name: _parameters(part)
        for name, part in parts.items()
        if any(_whole(item, *WIDTH) is not None for item in within(part))
    }


def left_out(values: Mapping[str, int | None], decoder: Model) -> str:
    """Return in words what is not projected, with its share of the parameters."""
    whole = count_parameters(decoder).total + sum(count or 0 for count in values.values())
    return ", ".join(
        f"{name} (parameters unknown)"
        if count is None
        else f"{name} (about {format_count(count)} parameters, {count / whole:.1%} of the model)"
        for name, count in values.items()
    )


def _parameters(part: Mapping[str, Any]) -> int | None:
    """Return the parameters of a plain transformer encoder of these sizes; projectors and poolers are not in it."""
    width, depth = _whole(part, *WIDTH), _whole(part, *DEPTH)
    if width is None or depth is None:
        return None
    ratio = part.get("mlp_ratio")
    inner = _whole(part, *INNER) or round(width * (ratio if isinstance(ratio, int | float) else 4))
    attention = FullAttention(
        num_heads=1, num_kv_heads=1, head_dim=width, causal=False, qkv_bias=True, output_bias=True
    )
    gated = part.get("hidden_act") in ("silu", "swish")
    layer = Layer(attention=attention, ffn=DenseFfn(ffn_hidden_size=inner, gated=gated, bias=not gated))
    patch, channels = _whole(part, "patch_size"), _whole(part, "num_channels", "in_channels", "in_chans") or 3
    side = (_whole(part, "image_size") or 0) // (patch or 1)
    patches = None if patch is None else Patches(patch_elements=patch**2 * channels)
    tower = Model(
        name="",
        hidden_size=width,
        layers=(layer,) * depth,
        norm="layer",
        patches=patches,
        learned_positions=side**2 if patch else 0,
    )
    return count_parameters(tower).total


def _whole(part: Mapping[str, Any], *names: str) -> int | None:
    result = (part.get(name) for name in names)
    return next((value for value in result if isinstance(value, int) and 0 < value < 2**31), None)
