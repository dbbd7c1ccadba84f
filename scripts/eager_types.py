"""Record the operators of model types of transformers as polynomials of their dimensions (needs the extra `trace`).

Usage: python scripts/eager_types.py [TYPE ...]; without types, all of TYPES. Writes catalogue/eager/TYPE.json.xz.
"""

from __future__ import annotations

import functools
import gc
import itertools
import json
import lzma
import sys
import time
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

warnings.filterwarnings("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from forescale.graph import dimensions as dims  # noqa: E402
from forescale.spec.trace import Formula, TracedBlock, TracedParameter  # noqa: E402
from forescale.trace.inputs import token_inputs  # noqa: E402
from forescale.trace.session import fake, record  # noqa: E402
from forescale.trace.sources import EXPERTS, default_type  # noqa: E402
from forescale.trace.symbols import Dictionary, Polynomial, Size, polynomial_of, symbol, text_of  # noqa: E402
from forescale.trace.tracing import Assembly  # noqa: E402

transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
AUTO: Any = transformers.AutoModelForCausalLM
OUT = Path(__file__).parents[1] / "src/forescale/catalogue/eager"
TYPES = [
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neox",
    "olmo",
    "olmo2",
    "olmo3",
    "smollm3",
    "glm",
    "glm4",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "gpt_oss",
    "deepseek_v2",
    "deepseek_v3",
    "glm4_moe",
    "seed_oss",
    "ernie4_5",
    "ernie4_5_moe",
    "olmoe",
    "phimoe",
    "granite",
    "granitemoe",
    "cohere",
    "cohere2",
    "starcoder2",
    "stablelm",
    "falcon",
    "bloom",
    "mpt",
    "gptj",
    "gpt_neo",
    "gpt_bigcode",
    "codegen",
    "nemotron",
    "apertus",
    "arcee",
    "exaone4",
    "helium",
    "hunyuan_v1_dense",
    "hunyuan_v1_moe",
    "dots1",
    "minimax_m2",
    "flex_olmo",
    "persimmon",
    "xglm",
    "biogpt",
    "glm4_moe_lite",
    "nanochat",
    "vaultgemma",
    "bitnet",
    "csm",
    "jais2",
    "diffllama",
    "doge",
]
FIRST = {
    "b": 11, "s": 8 * 37, "a": 13 * 17, "k": 13, "d": 8 * 23, "v": 8 * 2503, "p": 8 * 89, "w": 31, "f": 8 * 613,
    "e": 41 * 43, "t": 19, "m": 8 * 223, "n": 23, "y": 8 * 331, "q": 8 * 47, "c": 8 * 59, "o": 8 * 61, "r": 8 * 67,
    "u": 8 * 71, "g": 41, "l": 7, "x": 8 * 73, "z": 2 * 53,
}  # fmt: skip
CHECK = {
    "b": 13, "s": 8 * 31, "a": 7 * 11, "k": 11, "d": 8 * 17, "v": 8 * 1999, "p": 8 * 97, "w": 43, "f": 8 * 521,
    "e": 29 * 37, "t": 17, "m": 8 * 199, "n": 31, "y": 8 * 317, "q": 8 * 53, "c": 8 * 61, "o": 8 * 41, "r": 8 * 23,
    "u": 8 * 67, "g": 29, "l": 9, "x": 8 * 71, "z": 2 * 47,
}  # fmt: skip
"""Dimensions without common factors, for the recording and for its check."""
ONE_HEAD = ("gemma", "gemma2", "gemma3_text", "falcon", "gpt_bigcode")
"""Types of which models with one key/value head are common."""
WIDTH = {"first": 8 * 29, "check": 8 * 19}


def default_of(kind: str, **changes: Any) -> Any:
    return transformers.AutoConfig.for_model(kind, **changes)


class Type:
    """One model type: its defaults, symbols and flags."""

    def __init__(self, kind: str, *, free_heads: bool = True) -> None:
        self.kind = kind
        self.guessed_heads = False
        self.default = default_of(kind).to_dict()
        self.symbols = {s: key for s in dims.KEYS if (key := dims.key_of(s, self.default)) is not None}
        if "o" in self.symbols or "c" in self.symbols:
            self.symbols.pop("d", None)
        elif "d" not in self.symbols and free_heads and self._has_free_heads():
            self.guessed_heads = True
            self.symbols["d"] = "head_dim"
            self.default["head_dim"] = None
        self.layers_key = next(
            key for key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers") if key in self.default
        )
        self.free_head = "d" in self.symbols or "o" in self.symbols

    def _has_free_heads(self) -> bool:
        """Return whether the code of a type reads head_dim though its configuration does not list it."""
        sizes = []
        for changes in ({}, {"head_dim": 8}):
            try:
                config = default_of(self.kind, num_hidden_layers=1, **changes)
                with torch.device("meta"):
                    made = AUTO.from_config(config)
            except Exception:
                return False
            sizes.append(sum(item.numel() for item in made.parameters()))
        return bool(sizes[0] != sizes[1])

    def values(self, which: str, flags: dict[str, Any]) -> dict[str, int]:
        table = dict(FIRST if which == "first" else CHECK)
        width = WIDTH[which]
        if not flags.get("grouped_heads", True) or "o" in self.symbols:
            table["k"] = table["a"]
        if flags.get("grouped_heads") == "one":
            table["k"] = 1
        head = table["d"]
        table["h"] = table["a"] * (width if self.free_head else head)
        if not flags.get("window"):
            table["w"] = 8 * 313
        if not flags.get("projected"):
            table["x"] = table["h"]
        result = {s: table[s] for s in ("b", "s", *self.symbols)}
        if not self.free_head:
            result["d"] = head
        return result

    def config(self, which: str, flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
        """Return changes of the configuration, and all dimensions."""
        values = self.values(which, flags)
        changes: dict[str, Any] = {key: values[s] for s, key in self.symbols.items()}
        for key in (*dims.FLAGS,):
            if key in flags:
                changes[key] = flags[key]
        for key in dims.MAYBE:
            if flags.get(key) is False:
                changes[key] = None
            elif flags.get(key) and key not in self.symbols.values():
                changes[key] = 30.0
        if "dropout" in flags:
            changes |= {
                key: (self.default[key] or 0.1) if flags["dropout"] and self.default[key] else 0.0
                for key in dims.DROPOUTS
                if key in self.default
            }
        if not flags.get("window") and not self.default.get("sliding_window") and "w" in self.symbols:
            changes[self.symbols["w"]] = None
            values.pop("w")
        share = dims.rotary_share(self.default)
        if share != 1.0:
            rotated = (FIRST if which == "first" else CHECK)["z"]
            rope = dict(self.default.get("rope_parameters") or {})
            rope["partial_rotary_factor"] = (rotated + 0.5) / (values.get("d") or values["h"] // values["a"])
            changes["rope_parameters"] = rope
            values["z"] = rotated
        if (self.default.get("pad_token_id") or 0) >= values["v"]:
            changes["pad_token_id"] = 1
        changes |= self.layers()
        return changes, values

    def layers(self) -> dict[str, Any]:
        """Return four layers among which are all kinds."""
        changes: dict[str, Any] = {self.layers_key: 4}
        types = self.default.get("layer_types")
        if isinstance(types, list) and types:
            kinds = list(dict.fromkeys(types))
            changes["layer_types"] = (
                [kinds[i * len(kinds) // 4] for i in range(4)] if len(kinds) <= 4 else None
            )
        if isinstance(self.default.get("no_rope_layers"), list):
            changes["no_rope_layers"] = [1, 0, 1, 0]
        if "first_k_dense_replace" in self.default:
            changes["first_k_dense_replace"] = 2
        if "mlp_only_layers" in self.default:
            changes["mlp_only_layers"] = [0, 1]
        if isinstance(self.default.get("mlp_layer_types"), list):
            changes["mlp_layer_types"] = ["dense", "dense", "sparse", "sparse"]
            changes.pop("first_k_dense_replace", None)
        if self.default.get("moe_layer_start_index"):
            changes |= {"moe_layer_start_index": 2, "moe_layer_end_index": 3}
        return changes

    def variants(self, attention: str) -> list[dict[str, Any]]:
        """Return the combinations of flags to record: of heads and window all, of others each by itself."""
        base = dims.flags_of(self.default, {}, 1)
        base.pop("window")
        if "x" in self.symbols:
            base["projected"] = False
        axes: dict[str, list[Any]] = {}
        if "k" in self.symbols and "o" not in self.symbols:
            axes["grouped_heads"] = [True, False, *(["one"] if self.kind in ONE_HEAD else [])]
        sliding = "w" in self.symbols and self.default.get("use_sliding_window", True)
        axes["window"] = [False, True] if sliding else [False]
        first = [dict(zip(axes, combo, strict=True)) | base for combo in itertools.product(*axes.values())]
        result = list(first)
        for key, value in base.items():
            if key == "dropout" and not value:
                continue
            if attention == "sdpa" or key == "tie_word_embeddings":
                result.append({**first[0], key: not value})
        return result


class SymbolicAssembly(Assembly):
    """Combine one recording of symbolic sizes with one that checks it."""

    def __init__(self, module: Any, recordings: Any, check: dict[str, int], dictionary: Dictionary) -> None:
        super().__init__(module, recordings)
        self.check, self.dictionary = check, dictionary
        self.polynomials: dict[str, Polynomial] = {}
        self.wrong = 0

    def _formula(self, values: Any) -> Any:
        text = text_of(values[0])
        self.polynomials[text] = polynomial_of(values[0])
        if len(values) > 1 and (found := evaluated(self.polynomials[text], self.check)) != int(values[1]):
            raise ValueError(f"{text} gives {found}, not {int(values[1])}")
        return text

    def _rows(self, events: Any, path: Any) -> Any:
        rows = super()._rows(events, path)
        plain = {"product_unaligned": "product"}
        return [((*key[:3], plain.get(key[3], key[3]), *key[4:]), extents) for key, extents in rows]

    def _maxima(self, formulas: Any) -> Any:
        known = [(text, self.polynomials[text]) for text in formulas]

        def below(one: Polynomial, other: Polynomial) -> bool:
            return all(one.get(m, 0) <= other.get(m, 0) for m in {*one, *other})

        return tuple(
            text for text, one in known
            if not any(text != name and below(one, other) for name, other in known)
        )  # fmt: skip

    def _confirm(self, traced: Any) -> None:
        pass


def evaluated(polynomial: Polynomial, values: dict[str, int]) -> Fraction:
    total = Fraction(0)
    for monomial, factor in polynomial.items():
        value = Fraction(factor)
        for name, power in monomial:
            value *= Fraction(values[name]) ** power
        total += value
    return total


def derived(values: dict[str, int]) -> list[Size]:
    """Return sums of dimensions that tensors have."""
    s = {name: symbol(name, value) for name, value in values.items()}
    made = [s["s"] + 1, s["s"] - 1]
    if "k" in s and "d" in s:
        made += [s["a"] + 2 * s["k"], s["a"] // s["k"]]
        if s["k"] == s["a"]:
            made.pop()
    if "d" in s:
        made += [s["d"] // 2, s["d"] // 4]
    if "z" in s:
        made += [s["z"] // 2, s["d"] - s["z"]]
    if "o" in s:
        made += [s["o"] + s["r"], s["o"] + s["u"], s["c"] + s["r"], s["r"] // 2]
    if "e" in s:
        made += [s["e"] + 1]
        if "g" in s:
            made += [s["e"] // s["g"]]
    if "n" in s and "m" in s:
        made += [s["n"] * s["m"]]
    if "p" in s:
        made += [s["p"] + 2]
    return made


@functools.cache
def dictionary_of(values: tuple[tuple[str, int], ...]) -> Dictionary:
    return Dictionary(dict(values), derived(dict(values)))


def recorded(
    kind: Type, flags: dict[str, Any], precision: str, attention: str, *, check: bool, frozen: bool = False
) -> Any:
    """Return the symbolic trace of one variant, and the labels of its layers."""
    parameters = {"bf16": "bf16", "autocast": "fp32"}[precision]
    recordings = []
    module = None
    for which in ("first", "check") if check else ("first",):
        changes, values = kind.config(which, flags)
        config = default_of(kind.kind, **changes)
        config.use_cache = False
        with default_type(parameters), torch.device("meta"):
            made = AUTO.from_config(config, attn_implementation=attention)
        made.train()
        if frozen:
            made.requires_grad_(False)
            made.enable_input_require_grads()
        if hasattr(config, "_experts_implementation") and config._experts_implementation is None:
            config._experts_implementation = EXPERTS
        if which == "first":
            module, labels = made, dims.layer_labels(config.to_dict(), 4)
            dictionary = dictionary_of(tuple(sorted(values.items())))
        else:
            checked = values
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        fake(made, mode)
        recordings.append(record(
            made, functools.partial(token_inputs, values["b"], values["s"]), mode=mode, size=(values["b"], values["s"]),
            autocast=torch.bfloat16 if precision == "autocast" else None,
            extents=dictionary.extents if which == "first" else tuple,
        ))  # fmt: skip
    assembly = SymbolicAssembly(module, recordings, checked if check else {}, dictionary)
    trace = assembly.trace(torch.bfloat16 if precision == "autocast" else None)
    return trace, labels, dictionary


class Store:
    """Unique blocks of all variants."""

    def __init__(self) -> None:
        self.blocks: list[Any] = []
        self._index: dict[str, int] = {}

    def add(self, block: TracedBlock, extents: Any) -> int:
        content = plain(block, extents)
        content.pop("name")
        key = json.dumps(content, sort_keys=True)
        if key not in self._index:
            self._index[key] = len(self.blocks)
            self.blocks.append(content)
        return self._index[key]


def plain(item: Any, extents: Any) -> Any:
    if isinstance(item, TracedParameter):
        return [item.name, [text_of(extents(n)) for n in item.shape]]
    if isinstance(item, Formula):
        return "0"
    if hasattr(item, "__struct_fields__"):
        values = {name: plain(getattr(item, name), extents) for name in item.__struct_fields__}
        if "kind" in values and "extents" in values:
            return [values[n] for n in ("operator", "kind", "dtype", "extents", "count", "replayed")]
        return {name: value for name, value in values.items() if value not in ((), [], {})}
    if isinstance(item, list | tuple):
        return [plain(value, extents) for value in item]
    return item


def failed(variant: str, error: Exception, variants: list[Any]) -> str:
    """Return what failed; the variant of the defaults, which comes first, may not."""
    if not variants:
        raise error
    return f"{variant}: {type(error).__name__}: {str(error)[:200]}"


def attentions_of(name: str) -> tuple[str, ...]:
    """Return the kinds of attention that the code of a type has, the one that it uses by default first."""
    has_sdpa = AUTO._model_mapping[type(default_of(name))]._supports_sdpa
    return ("sdpa", "eager") if has_sdpa else ("eager",)


def record_type(name: str) -> dict[str, Any]:
    kind, attentions = Type(name), attentions_of(name)
    if kind.guessed_heads:
        try:
            recorded(kind, kind.variants(attentions[0])[0], "bf16", attentions[0], check=False)
        except Exception:
            kind = Type(name, free_heads=False)
    store, variants, failures = Store(), list[dict[str, Any]](), list[str]()
    for precision, attention in itertools.product(("bf16", "autocast"), attentions):
        combinations = [(False, flags) for flags in kind.variants(attention)]
        if attention == attentions[0]:
            combinations += [(True, flags) for flags in kind.variants("eager")]
        for index, (frozen, flags) in enumerate(combinations):
            try:
                trace, labels, dictionary = recorded(
                    kind, flags, precision, attention, check=index == 0, frozen=frozen
                )
            except Exception as error:
                failures.append(failed(f"{precision} {attention} {flags}", error, variants))
                continue
            layers = [layer for layer in trace.layers if not layer.startswith("between")]
            if len(layers) != len(trace.layers) or len(layers) != len(labels):
                failures.append(f"{precision} {attention} {flags}: layers {trace.layers}")
                continue
            clash = False
            blocks: dict[str, int] = {}
            for label, layer in zip(labels, layers, strict=True):
                number = store.add(trace.blocks[layer], dictionary.extent)
                clash = clash or blocks.setdefault(label, number) != number
            if clash:
                failures.append(
                    f"{precision} {attention} {flags}: one label, several kinds: {labels} {layers}"
                )
                continue
            variants.append({
                "precision": precision, "attention": attention, "frozen": frozen, "flags": flags,
                "blocks": blocks,
                "embedding": store.add(trace.embedding, dictionary.extent),
                "head": store.add(trace.head, dictionary.extent),
                "tied": trace.tied, "synchronises": trace.synchronises,
            })  # fmt: skip
            if dictionary.unknown and index == 0:
                print("   unknown", precision, attention, dictionary.unknown, flush=True)
            gc.collect()
            gc.freeze()
    for failure in failures[:6]:
        print("   failed", failure, flush=True)
    return {
        "type": name, "class": type(default_of(name)).__name__, "torch": torch.__version__.partition("+")[0],
        "transformers": transformers.__version__, "symbols": kind.symbols, "layers": kind.layers_key,
        "defaults": defaults(kind), "aliases": dict(default_of(name).attribute_map), "blocks": store.blocks,
        "variants": variants,
    }  # fmt: skip


def defaults(kind: Type) -> dict[str, Any]:
    """Return the values of keys that matter; those that follow from others as text."""
    result = {
        key: kind.default[key] for key in sorted(dims.RELEVANT) if key in kind.default and key != "model_type"
    }
    wider = default_of(kind.kind, **{kind.symbols["h"]: 2 * kind.default[kind.symbols["h"]]}).to_dict()
    try:
        heads = default_of(kind.kind, **{kind.symbols["a"]: 2 * kind.default[kind.symbols["a"]]}).to_dict()
    except Exception:
        heads = kind.default
    for key in result:
        if key == kind.symbols["h"] or key == kind.symbols["a"]:
            continue
        if wider.get(key) != kind.default[key] or heads.get(key) != kind.default[key]:
            result[key] = None
            print("   follows", key, flush=True)
    if isinstance(result.get("layer_types"), list) or isinstance(result.get("no_rope_layers"), list):
        longer = default_of(kind.kind, **{kind.layers_key: 240}).to_dict()
        for key in ("layer_types", "no_rope_layers", "mlp_layer_types"):
            if isinstance(result.get(key), list):
                result[key] = period(longer[key])
    return result


def period(values: list[Any]) -> list[Any]:
    """Return the shortest list whose repetition gives the first part of a list."""
    for length in range(1, 61):
        if all(value == values[i % length] for i, value in enumerate(values[:-6])):
            return values[:length]
    return values


def main() -> None:
    OUT.mkdir(exist_ok=True)
    for name in sys.argv[1:] or TYPES:
        start = time.time()
        try:
            content = record_type(name)
        except Exception as error:
            print(name, "FAILED", type(error).__name__, str(error)[:300], flush=True)
            continue
        text = json.dumps(content, separators=(",", ":"))
        if content["variants"]:
            (OUT / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
        size = (OUT / f"{name}.json.xz").stat().st_size if content["variants"] else 0
        print(name, len(content["variants"]), "variants", len(content["blocks"]), "blocks", len(text), size,
              f"{time.time() - start:.0f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
