"""Models by name: one data file each, beside this module in `models/`.

A file says where its figures come from (`source`) and of which date that is, and holds either the keys of a
Hugging Face configuration that describe the model (`huggingface`) or, for models that are not there, the
fields of `Model` (`model`), in which `repeat` stands for so many equal layers. Of a configuration that layers do not
describe, `traces/` has the recorded operators (`trace`), which `scripts/catalogue_traces.py` writes.
"""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from forescale.errors import UnknownNameError, required_with
from forescale.files import CATALOGUE, packaged, packaged_names
from forescale.patterns import pattern
from forescale.prepared import prepared
from forescale.records import record as checked
from forescale.spec.model import Model

HUB = "https://huggingface.co"
_ADDRESS = pattern(
    r"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?:api/)?(?:models/)?"
    r"(?P<organisation>[\w.-]+)(?:/(?P<name>[\w.-]+))?(?:[/?#].*)?$",
    re.IGNORECASE,
)
_ON_HUB = pattern(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$")
"""ORGANISATION/NAME, as models are called there."""
_SEPARATORS = str.maketrans("_ :", "---")
_STORED = pattern(r"(?:^|/)models--([^/]+?)--([^/]+)")
"""A folder in the cache of huggingface_hub."""
_TYPED = pattern(
    r"-(?:unsloth-bnb-4bit|bnb-\w+|awq|gptq|gptq-int\d|aqlm-\S+|fp8|fp16|bf16|nvfp4|int[48]|4bit|8bit)$"
)
"""Ends of names that state the type of the weights, not another architecture."""
MISSPELT = 0.85
"""Similarity of a name of the hub from which it is that of the catalogue, misspelt."""
_SIZE = pattern(r"\d+(?:\.\d+)?[bm]")
SHOWN = 3
"""Models of a size that an error names."""
_LETTERS = str.maketrans(dict.fromkeys("0123456789-.", " "))
_FAMILY = pattern(r"[a-z]{2,}")
"""What the names of a family begin with."""
ELSEWHERE = (
    "give its config.json, or its ORGANISATION/NAME on huggingface.co; forescale catalogue models lists all"
)
"""What to give for a model that the catalogue does not have."""
_NO_MODELS = frozenset({"datasets", "spaces", "docs", "blog", "papers", "collections"})


@cache
def model_names() -> tuple[str, ...]:
    """Return the names of all catalogue models, sorted."""
    return tuple(sorted(packaged_names("models")))


def load_model(name: str) -> Model:
    """Return the catalogue model `name`.

    Case, an organisation before a slash, underscores and the spellings of the alias file do not matter:
    "meta-llama/Llama-3.1-70B-Instruct" and its address on huggingface.co are llama-3.1-70b, as are its folders in the
    cache of huggingface_hub ("models--ORGANISATION--NAME") and in that of ModelScope, which writes "___" for a dot.

    Raises
    ------
    UnknownNameError
        If there is none; it names the nearest ones.
    """
    return _load(resolve_model_name(name))


def resolve_model_name(name: str) -> str:
    """Return the catalogue's own name of the model that `name` means; see `load_model`."""
    hub = hub_name(name)
    stored = _STORED.search(name)
    named = "/".join(stored.groups()) if stored else name.replace("___", ".")
    plain = (hub or named).strip().lower().rpartition("/")[2].translate(_SEPARATORS)
    if plain not in model_names():
        aliases = _aliases()
        bare = _TYPED.sub("", plain)
        plain = aliases.get(plain, aliases.get(bare, bare if bare in model_names() else plain))
        if plain not in model_names():
            hub = model_name_on_hub(name)
            names = (*model_names(), *aliases)
            like = _misspelt(plain, names) if hub else _related(plain, names)
            fix = f"save {address_of(hub)} and give that file" if hub else _of_cluster(name)
            fix = fix or ("" if like else ELSEWHERE)
            raise UnknownNameError("model", hub or name, like, fix)
    return plain


def _of_cluster(name: str) -> str:
    """Return how a cluster is given where its name stands in place of a model's; empty for other names."""
    from forescale.catalogue.clusters import is_cluster_name

    return f"it is a cluster (MODEL --cluster {name})" if is_cluster_name(name) else ""


def _related(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the same family, which begin with the same letters, and what `name` may misspell.

    For a size alone, such as 7b, it is the models of that size, those of the largest families first.
    """
    if _SIZE.fullmatch(name):
        return _of_size(name)
    family = _FAMILY.match(name)
    kin = (item for item in names if (family and item.startswith(family[0])) or name in item)
    return tuple(dict.fromkeys((*_misspelt(name, names), *kin)))


def _of_size(size: str) -> tuple[str, ...]:
    """Return the latest model of a size, such as 7b, of each of the largest families."""
    families = [item.translate(_LETTERS).partition(" ")[0] for item in model_names()]
    best = dict[str, tuple[int, str]]()
    for family, item in zip(families, model_names(), strict=True):
        parts = item.split("-")
        if size in parts and (family not in best or len(parts) <= best[family][0]):
            best[family] = (len(parts), item)
    return tuple(
        best[family][1] for family in sorted(best, key=lambda family: -families.count(family))[:SHOWN]
    )


def _misspelt(name: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names that `name` most likely misspells: the hub has thousands of others."""
    from difflib import get_close_matches

    return tuple(get_close_matches(name, names, 3, MISSPELT))


def address_of(name: str) -> str:
    """Return the address of the configuration of ORGANISATION/NAME on huggingface.co."""
    return f"{HUB}/{name}/resolve/main/config.json"


def model_name_on_hub(text: str) -> str | None:
    """Return ORGANISATION/NAME of such a text, or of an address on huggingface.co; None of others."""
    return hub_name(text) or (text.strip() if _ON_HUB.match(text.strip()) else None)


def hub_name(text: str) -> str | None:
    """Return the name, ORGANISATION/NAME as a rule, of the model at an address on huggingface.co; None of others."""
    result = _ADDRESS.match(text.strip())
    if result is None or result["organisation"].lower() in _NO_MODELS:
        return None
    return "/".join(filter(None, (result["organisation"], result["name"])))


@cache
def vocabulary_of(tokenizer: str) -> int | None:
    """Return the vocabulary of the model ("organisation/name") that a tokenizer comes with; None if it is not here."""
    try:
        return load_model(tokenizer.rstrip("/")).vocab_size
    except UnknownNameError:
        return None


@prepared("model")
def _load(name: str) -> Model:
    from forescale.frameworks.huggingface import read_huggingface

    record, where = packaged(f"models/{name}"), f"catalogue model {name}"
    if record.get("trace"):
        from forescale.frameworks.traces import model_of_document
        from forescale.graph.dealing import with_dealt_experts

        file = CATALOGUE / "traces" / f"{name}.json.xz"
        traced = model_of_document(json.loads(lzma.decompress(file.read_bytes())), Path(file.name))
        model = with_dealt_experts(traced)
        return replace(model, name=name, source=record["source"], config=json.dumps(record["huggingface"]))
    if "huggingface" in record:
        model = read_huggingface(record["huggingface"], name=name, where=where).model
        return replace(model, source=record["source"])
    return _native(record, name, where)


def _native(record: Mapping[str, Any], name: str, where: str) -> Model:
    if not isinstance(record.get("model"), Mapping):
        raise required_with("the key 'huggingface' or 'model'", "its file").at(where)
    values = dict(record["model"])
    values["layers"] = [
        {key: part for key, part in layer.items() if key != "repeat"}
        for layer in values.get("layers", ())
        for _ in range(layer.get("repeat", 1))
    ]
    model = checked(Model, values | {"name": name, "source": record["source"]}, "model", where)
    kinds = {layer: layer for layer in model.layers}
    return replace(model, layers=tuple(kinds[layer] for layer in model.layers))


@cache
def _aliases() -> Mapping[str, str]:
    listed = packaged("model_aliases")
    return MappingProxyType({alias: name for name, aliases in listed.items() for alias in aliases})
