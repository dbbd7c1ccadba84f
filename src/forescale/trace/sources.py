"""Modules to trace: a Hugging Face configuration, or a Python callable of the user."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import json
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import torch
from torch import nn

from forescale.catalogue.models import model_names
from forescale.errors import (
    ForescaleError,
    SpecError,
    UnknownNameError,
    cannot_parse,
    incomplete,
    missing,
    needing,
    no_effect,
    not_found,
    not_traceable,
    unsupported_by,
    wrong_type,
)
from forescale.graph.dimensions import KEYS
from forescale.trace.deferred import deferred_imports
from forescale.trace.inputs import further_inputs, token_arguments, token_inputs
from forescale.trace.session import Loss
from forescale.trace.tracing import MakeInputs

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
EXPERTS = "grouped_mm"
META = "meta"


@dataclass(slots=True, kw_only=True)
class Source:
    """A module with what it is called with."""

    name: str
    module: nn.Module
    inputs: MakeInputs
    further: tuple[MakeInputs, ...] = ()
    """What it is called with if it refuses these inputs."""
    loss: Loss | None = None
    hidden_size: int = 0
    vocab_size: int = 0
    origin: str = ""
    attention: str = ""
    experts: str = ""
    thresholds: tuple[int, ...] | None = ()
    """Sequence lengths at which it can change what it runs; None to trace one length."""
    external: bool = True
    """Whether it runs the kernels of other libraries that transformers uses if they are installed."""
    positions: int = 0
    """Positions that it has; 0 if it does not say."""
    tp_plan: Mapping[str, str] = field(default_factory=dict)
    """How the class splits its layers over ranks, by pattern."""


@contextlib.contextmanager
def default_type(kind: str) -> Iterator[None]:
    """Let modules of the body have parameters of a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(TYPES[kind])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def source_of(
    text: str,
    *,
    parameters: str,
    attention: str | None = None,
    trust_remote_code: bool = False,
    device: str = META,
) -> Source:
    """Return the module that a text names: `FILE.py:CALLABLE`, a config.json, a folder with one, or a cached id.

    Its parameters are on the meta device, unless a function that is named builds it on another one.

    Raises
    ------
    ForescaleError
        If it is none of these, or cannot be built.
    """
    file, colon, function = text.rpartition(":")
    if colon and file.endswith(".py"):
        return _from_callable(Path(file), function, parameters, device)
    if text.endswith(".py"):
        raise missing("the name of a function that returns a module", f"give {text}:build").at(text)
    return _from_huggingface(text, parameters, attention, trust_remote_code=trust_remote_code)


def _from_huggingface(
    text: str, parameters: str, attention: str | None, *, trust_remote_code: bool
) -> Source:
    transformers = _transformers()
    config = _config_of(text, transformers, trust_remote_code=trust_remote_code)
    return _from_config(
        config, _name_of(text, config), parameters, attention, trust_remote_code=trust_remote_code
    )


def source_of_config(
    content: Mapping[str, Any], *, parameters: str, attention: str | None = None, device: str = META
) -> Source:
    """Return the module that the content of a config.json describes; raises as `source_of`."""
    transformers = _transformers()
    config = _config_from(content, transformers, str(content.get("model_type")))
    name = str(content["model_type"])
    return _from_config(config, name, parameters, attention, trust_remote_code=False, device=device)


def _from_config(
    config: Any,  # noqa: ANN401
    name: str,
    parameters: str,
    attention: str | None,
    *,
    trust_remote_code: bool,
    device: str = META,
) -> Source:
    transformers = _transformers()
    text_config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    for part in (config, text_config):
        if hasattr(part, "use_cache"):
            part.use_cache = False
    with default_type(parameters), torch.device(device):
        module = _built(transformers, config, attention, trust_remote_code=trust_remote_code)
    module.train()
    if hasattr(config, "_experts_implementation") and config._experts_implementation is None:  # noqa: SLF001
        config._experts_implementation = EXPERTS  # noqa: SLF001
    experts = getattr(config, "_experts_implementation", "") or ""
    has_experts = any(
        getattr(text_config, name, 0) for name in ("num_experts", "num_local_experts", "n_routed_experts")
    )
    return Source(
        name=name,
        module=module,
        inputs=token_inputs,
        further=further_inputs(config, module),
        hidden_size=int(getattr(text_config, "hidden_size", 0) or 0),
        vocab_size=int(getattr(text_config, "vocab_size", 0) or 0),
        origin=f"transformers {transformers.__version__}, {type(module).__name__}",
        attention=str(getattr(config, "_attn_implementation", "") or ""),
        experts=str(experts) if has_experts else "",
        thresholds=_thresholds(text_config.to_dict()),
        positions=next(
            (n for key in KEYS["p"] if isinstance(n := getattr(text_config, key, None), int) and n > 0), 0
        ),
        tp_plan=dict(getattr(module, "tp_plan", None) or {}),
    )


THRESHOLDS = re.compile("window|chunk|block_size|local_attention")
"""Keys of a configuration that give sequence lengths at which other operators run."""


def _thresholds(content: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the sequence lengths at which a model can change what it runs.

    Attention to the best keys attends to all of a shorter sequence, whose keys can be compressed.
    """
    windows = [
        value
        for key, value in content.items()
        if THRESHOLDS.search(key) and isinstance(value, int) and value > 1
    ]
    keys, rates = content.get("index_topk"), content.get("compress_rates")
    per_key = min(rates.values(), default=1) if isinstance(rates, dict) else 1
    return (*windows, keys * per_key) if isinstance(keys, int) else (*windows,)


def _transformers() -> ModuleType:
    with needing("trace", "tracing a Hugging Face model", "transformers"), deferred_imports():
        import transformers.masking_utils
        import transformers.modeling_utils
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return transformers


def _config_of(text: str, transformers: ModuleType, *, trust_remote_code: bool) -> Any:  # noqa: ANN401
    path = Path(text)
    if path.is_file():
        return _config_from_file(path, transformers)
    try:
        return transformers.AutoConfig.from_pretrained(
            text, local_files_only=True, trust_remote_code=trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise _not_found(path, text) from error


def _not_found(path: Path, text: str) -> SpecError:
    """Return the error for a text that names no configuration."""
    give = "give a config.json, a folder with one, or FILE.py:FUNCTION"
    if path.is_dir():
        return incomplete("config.json that transformers can read", f"the folder {text}", give)
    if text in model_names():
        reason = f"{text} is in the catalogue and needs no trace"
        return no_effect(["forescale trace"], reason, f"give it to project as MODEL, or {give}")
    return not_found(f"file {text}, and no model of this name in the local cache of Hugging Face", give)


def _config_from_file(path: Path, transformers: ModuleType) -> Any:  # noqa: ANN401
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise cannot_parse("JSON", str(error)).at(path) from error
    if not isinstance(content, dict) or not isinstance(content.get("model_type"), str):
        raise missing("model_type", "a config.json of transformers has it").at(path)
    return _config_from(content, transformers, str(path))


ROTARY: Mapping[str, Any] = MappingProxyType({"text_config": {"head_dim": 128, "partial_rotary_factor": 0.5}})
IMAGE_TOKEN: Mapping[str, Any] = MappingProxyType({"image_token_index": 50265})
RUNNABLE: Mapping[str, Mapping[str, Any]] = MappingProxyType({
    **dict.fromkeys(("glm4v", "glm46v", "glmga", "glm4v_moe"), ROTARY),  # sections of rotary positions: 8 + 12 + 12
    **dict.fromkeys(("blip-2", "instructblip"), IMAGE_TOKEN),  # a model compares ids with it
    "instructblipvideo": {"video_token_index": 50265},
    "qwen3_omni_moe_thinker": {"text_config": {"head_dim": 128}},  # 2,048 / 28 is odd
})  # fmt: skip
"""Keys of published models for types whose forward fails in transformers at the defaults of these keys."""


def completed(content: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with further keys where it leaves them out, also in tables."""
    tables = {
        key: completed(content.get(key, {}), item) for key, item in more.items() if isinstance(item, Mapping)
    }
    return {**more, **content, **tables}


def _config_from(content: Mapping[str, Any], transformers: ModuleType, where: str) -> Any:  # noqa: ANN401
    kind = content["model_type"]
    try:
        return transformers.AutoConfig.for_model(**completed(content, RUNNABLE.get(kind, {})))
    except ValueError as error:
        if kind in transformers.CONFIG_MAPPING:
            raise not_traceable(kind, str(error).strip().splitlines()[0]).at(where) from error
        known = f"transformers {transformers.__version__}"
        raise unsupported_by(known, f"model_type {kind!r}", "update transformers").at(where) from error
    except Exception as error:
        raise not_traceable(kind, f"transformers refuses the configuration: {error}").at(where) from error


def _built(
    transformers: ModuleType,
    config: Any,  # noqa: ANN401
    attention: str | None,
    *,
    trust_remote_code: bool,
) -> nn.Module:
    """Return the module of a configuration on the meta device: a causal language model where there is one."""
    options: dict[str, Any] = {"trust_remote_code": trust_remote_code} if trust_remote_code else {}
    if attention is not None:
        options["attn_implementation"] = attention
    classes = [
        getattr(transformers, name)
        for name in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForImageTextToText")
        if hasattr(transformers, name)
    ]
    for auto in classes:
        if type(config) in auto._model_mapping:  # noqa: SLF001
            try:
                module: nn.Module = auto.from_config(config, **options)
            except Exception as error:
                first = str(error).strip().splitlines()[0] if str(error).strip() else ""
                reason = f"it cannot be built: {type(error).__name__}: {first}"
                raise not_traceable(config.model_type, reason) from error
            return module
    raise unsupported_by(
        f"transformers {transformers.__version__}", f"a causal language model of type {config.model_type!r}"
    )


def _name_of(text: str, config: Any) -> str:  # noqa: ANN401
    path = Path(text)
    if path.name == "config.json" and path.parent.name:
        return path.resolve().parent.name
    return path.stem if path.suffix == ".json" else (path.name or str(config.model_type))


def _from_callable(path: Path, function: str, parameters: str, device: str) -> Source:
    """Return what a function of a user's file builds.

    It returns a module, or a module and its inputs, or these and a loss. Inputs are a function of micro-batch size and
    sequence length that returns the arguments of the module.
    """
    if not path.is_file():
        raise not_found().at(path)
    build = _loaded(path, function)
    try:
        with default_type(parameters), torch.device(device):
            made = build()
    except Exception as error:
        raise ForescaleError(_where(error, path)) from error
    parts = made if isinstance(made, tuple) else (made,)
    if not isinstance(parts[0], nn.Module) or len(parts) > 3:
        allowed = "a torch.nn.Module, or a tuple of a module, its inputs and a loss"
        raise wrong_type(f"the result of {function}()", type(made).__name__, allowed).at(path)
    module, inputs, loss = (*parts, None, None)[:3]
    module.train()
    return Source(
        name=f"{path.stem}.{function}",
        module=module,
        inputs=inputs if callable(inputs) else token_arguments(module),
        loss=loss,
        vocab_size=int(getattr(module, "vocab_size", 0) or 0),
        origin=f"{path.name}:{function}",
    )


def _loaded(path: Path, function: str) -> Any:  # noqa: ANN401
    spec = importlib.util.spec_from_file_location(f"_forescale_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ForescaleError(_where(error, path)) from error
    finally:
        sys.path.pop(0)
    result = getattr(module, function, None)
    if not callable(result):
        known = [name for name, var in vars(module).items() if inspect.isfunction(var)]
        raise UnknownNameError("function", function, known).at(path)
    return result


def _where(error: Exception, path: Path) -> str:
    """Return the line of the user's file where an error happened, and the error."""
    frames = [
        item
        for item in traceback.extract_tb(error.__traceback__)
        if Path(item.filename) == path.resolve() or item.filename == str(path)
    ]
    line = error.lineno if isinstance(error, SyntaxError) else (frames[-1].lineno if frames else None)
    at = f", line {line}" if line else ""
    return f"{path}{at}: {type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
