"""A decoder described by its sizes, by the names that people use, without a framework."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from forescale import wording
from forescale.errors import ReaderError, SpecError, UnknownKeyError
from forescale.files import shipped
from forescale.frameworks.detect import Signed
from forescale.frameworks.getters import Getters
from forescale.frameworks.reading import Options, ParsedFile, unknown_of
from forescale.spec.attention import FullAttention
from forescale.spec.model import DenseFfn, Ffn, Layer, Model, MoeFfn
from forescale.syntax import load_mapping

LARGEST: Final = 2**40
GATED: Final = ("swiglu", "silu", "geglu", "swish", "glu")
UNGATED: Final = ("gelu", "relu", "relu2", "squared_relu", "gelu_new", "gelu_tanh")
NORMS: Final[Mapping[str, str]] = {
    "rms": "rms",
    "rmsnorm": "rms",
    "rms_norm": "rms",
    "layer": "layer",
    "layernorm": "layer",
    "layer_norm": "layer",
}
NEEDED: Final = ("num_layers", "hidden_size", "num_heads", "vocab_size")
PLAIN_FFN: Final = 4
"""Hidden sizes of a feed-forward layer whose size is not given."""


class Described(NamedTuple):
    """A decoder that sizes describe."""

    model: Model
    keys: tuple[str, ...]
    """The keys as they were written."""
    note: str
    """What was assumed of it."""


class DescribedReader(Signed):
    """Sizes of a decoder: a model, no layout."""

    name: Final = "described"
    title: Final = "Sizes of a decoder in JSON or YAML, by their usual names"

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return the model at `path`, and what was assumed of it."""
        values = load_mapping(path)
        unknown = unknown_of(values, _fields(), path, {}, strict=options.strict)
        known = {key: value for key, value in values.items() if key not in unknown}
        described = described_model(known, str(path), path.stem)
        return ParsedFile(
            format=self.name,
            model=described.model,
            used=described.keys,
            unknown=unknown,
            notes=(described.note,),
        )


def described_model(values: Mapping[str, Any], where: str, name: str = "model") -> Described:
    """Return the decoder that a table of sizes describes.

    Raises
    ------
    UnknownKeyError
        If a key is the name of no size.
    ReaderError
        If a size is missing or impossible.
    """
    sizes = Sizes(values, where)
    try:
        model = sizes.model(name)
    except ReaderError:
        raise
    except SpecError as error:
        raise ReaderError(where, error) from error
    return Described(model=model, keys=tuple(sizes.keys.values()), note=sizes.note(model))


@cache
def _fields() -> Mapping[str, str]:
    """Return the size that each name of it means."""
    return {word: field for field, words in shipped("frameworks/described").items() for word in words.split()}


class Sizes(Getters):
    """The sizes of a file by our names."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.where = where
        self.values: dict[str, Any] = {}
        self.keys: dict[str, str] = {}
        """How the file calls each size."""
        for key, value in values.items():
            if (field := _fields().get(key)) is None:
                raise UnknownKeyError(key, self.where, [*_fields()])
            if field in self.keys:
                self.refuse(wording.given_twice((self.keys[field], key)))
            self.keys[field], self.values[field] = key, value

    def count(self, field: str, usual: int | None = None, *, least: int = 1) -> int:
        """Return a whole number, `usual` where the file leaves it out."""
        if field not in self.values and usual is not None:
            return usual
        value = self.values.get(field)
        number = value if isinstance(value, int) and not isinstance(value, bool) else None
        return self.whole(self.keys.get(field, field), number, value, least=least, most=LARGEST)

    def flag(self, field: str, *, usual: bool = False) -> bool:
        """Return true or false, `usual` where the file leaves it out."""
        value = self.values.get(field, usual)
        return self.boolean(self.keys.get(field, field), value if isinstance(value, bool) else None, value)

    def word(self, field: str, known: Mapping[str, Any], usual: str) -> Any:  # noqa: ANN401
        """Return what a word of the file means."""
        value = str(self.values.get(field, usual)).lower()
        if value not in known:
            self.refuse(wording.not_one_of(self.keys.get(field, field), value, known))
        return known[value]

    def model(self, name: str) -> Model:
        """Return the decoder."""
        needed = [
            field
            for field in ("num_layers", "hidden_size", "num_heads", "vocab_size")
            if field not in self.values
        ]
        if needed:
            self.refuse(wording.missing(needed))
        num_layers, num_dense = self.count("num_layers"), self.count("num_dense_layers", 0, least=0)
        is_moe = "num_experts" in self.values
        others = Layer(attention=self._attention(), ffn=self._experts() if is_moe else self._dense())
        first = Layer(attention=others.attention, ffn=self._dense())
        dense = min(num_dense, num_layers) if is_moe else 0
        return Model(
            name=str(self.values.get("name", name)),
            hidden_size=self.count("hidden_size"),
            layers=(first,) * dense + (others,) * (num_layers - dense),
            vocab_size=self.count("vocab_size"),
            tied_embeddings=self.flag("tied_embeddings"),
            norm=self.word("norm", NORMS, "rms"),
            max_seq_len=self.count("max_seq_len", 0, least=0),
            source=self.where,
        )

    def _attention(self) -> FullAttention:
        heads = self.count("num_heads")
        width = self.count("hidden_size")
        if "head_dim" not in self.values and width % heads:
            self.refuse(wording.not_divisible(self.keys["hidden_size"], width, heads, self.keys["num_heads"]))
        return FullAttention(
            num_heads=heads,
            num_kv_heads=self.count("num_kv_heads", heads),
            head_dim=self.count("head_dim", width // heads),
            window=self.count("window") if self.values.get("window") else None,
            qkv_bias=self.flag("bias"),
            output_bias=self.flag("bias"),
            qk_norm="head" if self.flag("qk_norm") else "none",
        )

    def _gated(self) -> bool:
        """Whether feed-forward layers are gated: as the activation says, else where their size is given."""
        words = {**dict.fromkeys(GATED, True), **dict.fromkeys(UNGATED, False)}
        sized = {"ffn_hidden_size", "expert_ffn_hidden_size"} & self.values.keys()
        return bool(self.word("activation", words, GATED[0] if sized else UNGATED[0]))

    def _ffn_size(self) -> int:
        return self.count("ffn_hidden_size", PLAIN_FFN * self.count("hidden_size"))

    def _dense(self) -> DenseFfn:
        return DenseFfn(ffn_hidden_size=self._ffn_size(), gated=self._gated(), bias=self.flag("bias"))

    def _experts(self) -> Ffn:
        if "top_k" not in self.values:
            self.refuse(wording.required_with("top_k", self.keys["num_experts"]))
        size = self.count(
            "expert_ffn_hidden_size", self.count("ffn_hidden_size", PLAIN_FFN * self.count("hidden_size"))
        )
        return MoeFfn(
            num_experts=self.count("num_experts"),
            top_k=self.count("top_k"),
            ffn_hidden_size=size,
            gated=self._gated(),
            shared_ffn_hidden_size=self.count("num_shared_experts", 0, least=0) * size,
        )

    def note(self, model: Model) -> str:
        """Return what the model was taken for."""
        ffn = model.layers[-1].ffn
        assert ffn is not None
        parts = [
            f"{'gated' if ffn.gated else 'plain'} feed-forward layers of {int(ffn.ffn_hidden_size):,}",
            f"{'tied' if model.tied_embeddings else 'untied'} embeddings",
            "RMSNorm" if model.norm == "rms" else "LayerNorm",
            "rotary positions",
        ]
        return f"taken for a decoder with {', '.join(parts[:-1])} and {parts[-1]}"
