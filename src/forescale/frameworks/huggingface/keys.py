"""A view of a parsed configuration that checks values and remembers which keys were used; parts that models share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from forescale import wording
from forescale.errors import UnknownKeyError
from forescale.frameworks.getters import Getters
from forescale.frameworks.reading import packaged
from forescale.limits import EXTENT, LAYERS
from forescale.spec.attention import Attention, FullAttention
from forescale.spec.model import USUAL_EPS, DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.spec.rope import PLAIN_ROPE, Rope
from forescale.units import counted

MISSPELT = 0.93
"""How alike a key is to one that is missing where it must be that one: a letter more or less of fifteen."""
MISSPELT_SIZE = 0.9
"""The same, where the missing key is a size that would have its default: one other letter of eleven."""
_BOUNDED = ("num_hidden_layers", "n_layers", "n_layer", "num_layers", "num_nextn_predict_layers")


class Keys(Getters):
    """Keys of one JSON object; null is absent. Several names may be given where spellings differ."""

    def __init__(self, data: Mapping[str, Any], where: str) -> None:
        self._data = dict(data)
        self._used: set[str] = set()
        self._missing: set[str] = set()
        self._defaulted: set[str] = set()
        self._children: dict[str, Keys] = {}
        self.defaults: Mapping[str, Any] = {}
        """Values of keys that are absent."""
        self.where = where

    def get(self, *names: str) -> Any:  # noqa: ANN401
        """Return the first value that is present and not null, or None."""
        self._used.update(names)
        if not any(name in self._data for name in names):
            self._missing.update(names)
        values = {name: self._data[name] for name in names if self._data.get(name) is not None}
        first = next(iter(values), names[0])
        for name, value in values.items() if names in ALIKE else ():
            if name != first and value != values[first]:
                self.refuse(wording.differs(first, values[first], name, value, "leave one out"))
        if first in values:
            return values[first]
        default = next((name for name in names if name in self.defaults), None)
        if default is None:
            return None
        self._defaulted.update(names)
        return self.defaults[default]

    @property
    def data(self) -> Mapping[str, Any]:
        """All keys with their values."""
        return self._data

    def leave(self, *names: str) -> None:
        """Count keys as unread after all: what they say is not described."""
        self._used.difference_update(names)

    def spelt(self, *names: str) -> str:
        """Return the name that is given of several, in quotes."""
        return repr(next((name for name in names if self._data.get(name) is not None), names[0]))

    def size(self, *names: str, default: int | None = None) -> int:
        """Return a positive whole number; without a default the key is required."""
        value = self.optional_size(*names)
        if value is not None:
            return value
        if default is None:
            near = get_close_matches(names[0], self.unread(), 1, 0.8)
            hint = f"it has {near[0]!r}" if near else self._also(names)
            self.refuse(wording.missing(names[0], hint))
        return default

    def optional_size(self, *names: str) -> int | None:
        """Return a positive whole number, or None where the key is absent."""
        value = self.get(*names)
        return None if value is None else self._whole(names[0], value, least=1)

    def count(self, *names: str) -> int:
        """Return a whole number of zero or more; absent is zero."""
        value = self.get(*names)
        return 0 if value is None else self._whole(names[0], value, least=0)

    def number(self, *names: str, zero: bool = False) -> float | None:
        """Return a number of more than zero, or of zero, or None where the key is absent."""
        value = self.get(*names)
        if value is None:
            return None
        if zero and value == 0:
            return 0.0
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            self.refuse(wording.out_of_range(self.key(*names), value, "a number above 0"))
        return float(value)

    def flag(self, *names: str, default: bool) -> bool:
        """Return true or false."""
        value = self.get(*names)
        if value is None:
            return default
        return self.boolean(names[0], value if isinstance(value, bool) else None, value)

    def items(self, name: str, length: int | None = None) -> Sequence[Any] | None:
        """Return a list of names or numbers, one for each of `length` layers, or None where it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str | int) for item in value):
            self.refuse(wording.wrong_type(self.key(name), value, "a list of names or numbers"))
        if length is not None and len(value) != length:
            layers = counted(len(value), "layer")
            self.refuse(wording.wrong_count(self.key(name), layers, "the model", length))
        return value

    def words(self, name: str, length: int, known: Sequence[str]) -> Sequence[Any] | None:
        """Return a list of `known` words, one for each of `length` layers, or None where it is absent."""
        value = self.items(name, length)
        if wrong := [item for item in value or () if item not in known]:
            self.refuse(wording.not_one_of(self.key(name), wrong[0], known))
        return value

    def child(self, name: str) -> Keys | None:
        """Return the keys of a nested object, or None where there is none."""
        value = self.get(name)
        if not isinstance(value, Mapping):
            return None
        return self._children.setdefault(name, Keys(value, f"{self.where}, {name}"))

    def table(self, name: str) -> Keys | None:
        """Return the keys of what can only be a nested object, or None where it is absent."""
        value, child = self.get(name), self.child(name)
        if value is not None and child is None:
            self.refuse(wording.wrong_type(self.key(name), value, "a table"))
        return child

    def word(self, *names: str) -> str:
        """Return a word; empty where the key is absent."""
        value = self.get(*names)
        if value is not None and not isinstance(value, str):
            self.refuse(wording.wrong_type(self.key(*names), value, "a word"))
        return value or ""

    def fall_back(self, name: str, other: Keys) -> None:
        """Take `name` from `other` where it is absent here."""
        value = other.get(name)
        if self._data.get(name) is None and value is not None:
            self._data[name] = value

    def refuse_set(self, name: str, why: str) -> None:
        """Raise an error if the flag `name` is set: the file describes what the model cannot express."""
        if self.get(name):
            self.refuse(wording.not_expressed(self.key(name), f"({why})"))

    def refuse_misspelt(self) -> None:
        """Refuse a key that nobody asked for and that is nearly one that was asked for and is not there.

        Keys with a leading underscore are a library's own (`_sliding_window_pattern` of Gemma 3).
        """
        missing, defaulted = frozenset(self._missing), frozenset(self._defaulted)
        for name in self._data:
            if name in self._used or name.startswith("_"):
                continue
            near = _nearest(name, missing, MISSPELT) or _nearest(name, defaulted, MISSPELT_SIZE)
            if near:
                raise UnknownKeyError(name, self.where, near)
        for child in self._children.values():
            child.refuse_misspelt()

    def unread(self, prefix: str = "") -> tuple[str, ...]:
        """Return the keys that nobody asked for, those of nested objects with a dotted prefix, sorted."""
        texts = [f"{prefix}{name}" for name in self._data if name not in self._used]
        nested = [key for name, child in self._children.items() for key in child.unread(f"{prefix}{name}.")]
        return tuple(sorted([*texts, *nested]))

    def unread_parts(self) -> dict[str, Mapping[str, Any]]:
        """Return the objects under keys that nobody asked for."""
        return {
            name: value
            for name, value in self._data.items()
            if name not in self._used and isinstance(value, Mapping)
        }

    def _whole(self, name: str, value: object, *, least: int) -> int:
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        known = number if isinstance(number, int) and not isinstance(number, bool) else None
        most = LAYERS.le if name in _BOUNDED else EXTENT.le
        return self.whole(self.key(name), known, value, least=least, most=most)

    def _also(self, names: Sequence[str]) -> str:
        return f"{wording.listed(names[1:])} may stand for it" if len(names) > 1 else ""

    def key(self, *names: str) -> str:
        """Return the name that is present of several, the first where none is."""
        return self.spelt(*names).strip("'")


@lru_cache(maxsize=4096)
def _nearest(name: str, others: frozenset[str], cutoff: float) -> list[str]:
    return get_close_matches(name, sorted(others), 1, cutoff)


Part = TypeVar("Part")
Read = TypeVar("Read", bound=Callable[..., Any])


def named(rows: Mapping[Read, str]) -> dict[str, Read]:
    """Return what reads each architecture, sorted, of rows that name all that one function reads."""
    return dict(
        sorted(((name, read) for read, names in rows.items() for name in names.split()), key=itemgetter(0))
    )


HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
DEPTH_KEYS = ("num_hidden_layers", "n_layer", "n_layers")
ALIKE = (HIDDEN, HEADS, DEPTH_KEYS)
"""Spellings of one thing, which cannot differ; of others the first counts (`embed_dim` beside an output's
`hidden_size` of a tower, `seq_length` beside `max_position_embeddings`)."""
MOST_LAYERS = 10_000
"""Beyond it a file is damaged, and listing its layers would only fill the memory."""
POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "n_ctx")
FULL = ("full_attention", "attention")
SLIDING = ("sliding_attention", "chunked_attention")
LINEAR = ("linear_attention", "lightning_attention")
CLASSES: Final = packaged("huggingface", "classes")
SIZES: Final = packaged("huggingface", "sizes")["types"]
"""Default sizes of types that have no recording; empty for types whose language model has its own type."""
EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon")
"""What architectures call the term that norms add to the variance."""
SHARES = ("partial_rotary_factor", "rotary_pct")
PLAIN_TYPES: Final = ("", "default", "mrope")
"""Words for positions that are not scaled."""
ROPE_TYPES: Final = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_seq_len",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_seq_len",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
    },
}
"""Numbers of each `rope_type` that is described, by the fields of `Rope` that they are; of others only the base is."""


def decoder(
    keys: Keys,
    attention: Attention | Sequence[Attention | None],
    ffn: Ffn | Sequence[Ffn | None],
    *,
    tied: bool,
    num_norms: int = 2,
    parallel: bool = False,
    **fields: Any,  # noqa: ANN401
) -> Model:
    """Return the model of these layers; one part stands for all layers, a sequence lists them.

    `tied` is what the architecture assumes where the file says nothing of `tie_word_embeddings`.
    """
    layers = num_layers(keys)
    mixers: Sequence[Attention | None] = _spread(attention, layers)
    mlps: Sequence[Ffn | None] = _spread(ffn, layers)
    kinds: dict[Layer, Layer] = {}
    stack = (
        Layer(attention=mixer, ffn=mlp, num_norms=num_norms, parallel=parallel)
        for mixer, mlp in zip(mixers, mlps, strict=True)
    )
    return Model(
        name="",
        hidden_size=keys.size(*HIDDEN),
        layers=tuple(kinds.setdefault(layer, layer) for layer in stack),
        vocab_size=keys.size("vocab_size"),
        tied_embeddings=keys.flag("tie_word_embeddings", default=tied),
        norm_eps=norm_eps(keys),
        max_seq_len=keys.count(*POSITIONS),
        **fields,
    )


def num_layers(keys: Keys) -> int:
    """Return the number of decoder layers; Nemotron-H of transformers 5 only lists them."""
    listed = keys.items("layers_block_type")
    number = keys.size(*DEPTH_KEYS, default=len(listed) if listed else None)
    if number > MOST_LAYERS:
        keys.refuse(wording.too_large("the model", counted(number, "layer"), MOST_LAYERS))
    return number


def full_attention(
    keys: Keys,
    *,
    head_dim: int | None = None,
    bias: bool = False,
    **fields: Any,  # noqa: ANN401
) -> FullAttention:
    """Return grouped-query attention; `head_dim` and `bias` are the architecture's defaults.

    Without a `head_dim` anywhere the hidden size is divided over the heads. `attention_bias` is on all four
    projections unless `fields` say otherwise.
    """
    heads = keys.size(*HEADS)
    biased = keys.flag("attention_bias", default=bias)
    width = keys.optional_size("head_dim") or head_dim or even_head_dim(keys)
    gate = keys.flag("attn_output_gate", default=False)
    fields = {"qkv_bias": biased, "output_bias": biased, "output_gate": gate, **fields}
    if fields.get("rotary", True):
        fields = {"rope": rope_of(keys), **fields}
    kv_heads = keys.size(*KV_HEADS, default=heads)
    if heads % kv_heads:
        violation = wording.not_divisible(keys.key(*HEADS), heads, kv_heads, keys.key(*KV_HEADS))
        keys.refuse(violation)
    return FullAttention(num_heads=heads, num_kv_heads=kv_heads, head_dim=width, **fields)


def rope_of(keys: Keys) -> Rope:
    """Return how positions turn queries and keys, of layers that see all where others do not."""
    usual = CLASSES["scaling"].get(keys.get("model_type"), {})
    table = keys.table("rope_parameters") or keys.table("rope_scaling") or Keys(usual, keys.where)
    return _rope(keys, table.table(FULL[0]) or table, "rope_theta")


def near_rope_of(keys: Keys, *names: str) -> Rope:
    """Return the same of layers that slide: transformers 5 lists them apart, 4 never scales them.

    Their base is under `names`, and a plain one where it is not; without names it is that of the others.
    """
    listed = keys.table("rope_parameters")
    table = (listed.table(SLIDING[0]) if listed else None) or Keys({}, keys.where)
    return _rope(keys, table, *(names or ("rope_theta",)), usual=PLAIN_ROPE.base if names else None)


def _rope(keys: Keys, table: Keys, *names: str, usual: float | None = None) -> Rope:
    kind = keys.get("model_type")
    names = (*names, "rotary_emb_base")
    base = table.number("rope_theta") or keys.number(*names) or usual or CLASSES["theta"].get(kind)
    rope = Rope(base=base or PLAIN_ROPE.base, share=_share(keys, table))
    scaling = table.word("rope_type", "type")
    fields = ROPE_TYPES.get(scaling, {})
    values: dict[str, Any] = {ours: table.number(theirs) for theirs, ours in fields.items()}
    if "original_seq_len" in values:
        values["original_seq_len"] = int(values["original_seq_len"] or keys.count(*POSITIONS))
    if scaling == "yarn":
        values |= {name: table.number(name, zero=True) for name in ("mscale", "mscale_all_dim")}
        if not (values["mscale"] and values["mscale_all_dim"]):  # they count together only
            values["mscale"], values["mscale_all_dim"] = _weight(table), None
        values["rounded"] = table.flag("truncate", default=True)
    explicit = {name: value for name, value in values.items() if value is not None}
    if fields:
        return replace(rope, scaling=scaling, **explicit)
    if scaling not in PLAIN_TYPES:
        table.leave("rope_type", "type")
    return rope


def _weight(table: Keys) -> float | None:
    """Return the weight of YaRN's factor of sines and cosines that is told outright; None where it is not."""
    number, factor = table.number("attention_factor"), table.number("factor") or 1.0
    return None if number is None or factor <= 1 else round((number - 1) / (0.1 * math.log(factor)), 9)


def _share(keys: Keys, table: Keys) -> float:
    """Return the share of a head's dimensions that is turned, given as such or by their number."""
    number = table.number("partial_rotary_factor") or keys.number(*SHARES)
    turned, width = keys.optional_size("rotary_dim"), keys.optional_size("head_dim")
    if number is None and turned and width:
        return turned / width
    usual: float = CLASSES["share"].get(keys.get("model_type"), 1.0)
    return number or usual


def norm_eps(keys: Keys) -> float:
    """Return what norms add to the variance."""
    usual: float = CLASSES["eps"].get(keys.get("model_type"), USUAL_EPS)
    return keys.number(*EPS) or usual


def even_head_dim(keys: Keys) -> int:
    """Return the hidden size divided over the heads."""
    hidden, heads = keys.size(*HIDDEN), keys.size(*HEADS)
    if hidden % heads:
        fix = "give head_dim"
        keys.refuse(wording.not_divisible(keys.key(*HIDDEN), hidden, heads, keys.key(*HEADS), fix))
    return hidden // heads


def dense_ffn(keys: Keys, *names: str, gated: bool = True, bias: bool = False) -> DenseFfn:
    """Return the dense feed-forward whose size stands under the first of `names` that is there."""
    return DenseFfn(ffn_hidden_size=keys.size(*(names or ("intermediate_size",))), gated=gated, bias=bias)


def four_times(keys: Keys, *names: str) -> int:
    """Return the feed-forward size, four times the hidden size where the file names none."""
    return keys.size(*names, default=4 * keys.size(*HIDDEN))


def windowed(
    keys: Keys,
    full: FullAttention,
    *,
    slides: Callable[[int], bool],
    window: int | None,
    local: FullAttention | None = None,
) -> tuple[FullAttention, ...]:
    """Return each layer's attention: `layer_types` of the file decides, `slides` where there are none.

    A window no smaller than the longest sequence is none. `local` is the windowed form of `full`, if they
    differ in more than the window.
    """
    longest = keys.count(*POSITIONS)
    if window is not None and longest and window >= longest:
        window = None
    base = local or full
    near = replace(base, window=window)
    return choose(keys, lambda kind: near if kind in SLIDING else full, lambda i: near if slides(i) else full)


def choose(keys: Keys, by_type: Callable[[str], Part], by_index: Callable[[int], Part]) -> tuple[Part, ...]:
    """Return one part per layer, by the names in `layer_types` or else by the layer's index."""
    layers = num_layers(keys)
    kinds = keys.words("layer_types", layers, (*FULL, *SLIDING, *LINEAR))
    if kinds is None:
        return tuple(by_index(i) for i in range(layers))
    return tuple(by_type(kind) for kind in kinds)


def routed(
    keys: Keys,
    dense: DenseFfn | None,
    moe: MoeFfn,
    is_moe: Callable[[int], bool],
) -> tuple[Ffn, ...]:
    """Return each layer's feed-forward: by `mlp_layer_types` of the file, or else by `is_moe`."""
    layers = num_layers(keys)
    kinds = keys.words("mlp_layer_types", layers, ("dense", "sparse"))
    sparse = [kind == "sparse" for kind in kinds] if kinds else [is_moe(i) for i in range(layers)]
    if not all(sparse) and dense is None:
        keys.refuse(wording.required_with("intermediate_size", "a dense layer"))
    return tuple(moe if routes or dense is None else dense for routes in sparse)


def _spread(part: Part | Sequence[Part], layers: int) -> Sequence[Part]:
    return part if isinstance(part, tuple | list) else [cast("Part", part)] * layers
