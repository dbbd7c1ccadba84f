"""Read the performance recipes of a release of Megatron-Bridge into a data file of the catalogue.

    python scripts/bridge_recipes.py CHECKOUT TAG OUT.json

CHECKOUT is a git directory of NVIDIA-NeMo/Megatron-Bridge. The release v0.1 holds a table of degrees for each
model, later ones up to v0.5 one dataclass per recipe, and those after one function, which is run on an object that
records what is set. Only settings are read, never measured figures.
"""

from __future__ import annotations

import builtins
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from forescale.catalogue.models import load_model
from forescale.frameworks.megatron.layout import launch_graphs
from forescale.spec.recipes import active_width, kind_of
from forescale.syntax import parse_yaml

MODELS: Mapping[str, str] = {
    "deepseek_v3": "deepseek-v3", "gpt_oss_120b": "gpt-oss-120b", "kimi_k2": "kimi-k2", "llama3_8b": "llama-3-8b",
    "llama3_70b": "llama-3-70b", "llama31_405b": "llama-3.1-405b", "nemotronh_56b": "nemotron-h-56b",
    "nemotron_3_nano": "nemotron-3-nano-30b-a3b", "nemotron_3_super": "nemotron-3-super-120b-a12b",
    "gpt_oss_20b": "gpt-oss-20b", "nemotron_3_ultra": "nemotron-3-ultra-550b-a55b",
    "nemotron_3_5_lightning": "nemotron-3.5-lightning-30b-a3b", "qwen35_vl_35b_a3b": "qwen3.5-35b-a3b",
    "qwen35_vl_122b_a10b": "qwen3.5-122b-a10b", "qwen35_vl_397b_a17b": "qwen3.5-397b-a17b",
    "qwen3_30b_a3b": "qwen3-30b-a3b", "qwen3_235b_a22b": "qwen3-235b-a22b", "qwen3_next_80b_a3b": "qwen3-next-80b-a3b",
}  # fmt: skip
"""Models of the recipes by the start of a recipe's name."""
TYPES = {"bf16": ("bf16", ""), "fp8_cs": ("fp8", "current"), "fp8_mx": ("mxfp8", ""), "nvfp4": ("nvfp4", ""),
         "fp8_sc": ("fp8", "blockwise"), "fp8_ss": ("fp8", "blockwise"), "fp8_ds": ("fp8", "delayed")}  # fmt: skip
NAME = re.compile(
    r"(?P<model>\w+?)_(?:pretrain_)?(?:config_)?(?:(?P<devices>\d+)gpu_)?(?P<device>gb300|gb200|b300|b200|h100|vr200|r100)"
    r"(?:_(?P<types>bf16|fp8_?cs|fp8_?mx|nvfp4|fp8_?sc|fp8_?ss|fp8_?ds))?(?:_(?:base_)?config)?(?P<variant>_\w+)?"
)
ARCHITECTURES = {"h100": "hopper", "b200": "blackwell", "gb200": "blackwell", "b300": "blackwell-ultra",
                 "gb300": "blackwell-ultra", "vr200": "rubin", "r100": "rubin"}  # fmt: skip
FOLDER = "scripts/performance/configs"
TABLE_END = "_llm_pretrain.yaml"
TABLE = re.compile(rf"{FOLDER}/\w+/\w+{re.escape(TABLE_END)}")
"""Files of v0.1, one for each model."""
DEGREES = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
           "vpp": "virtual_pipeline_model_parallel_size", "ep": "expert_model_parallel_size"}  # fmt: skip
TABLE_DEGREES = {{"vpp": "vp"}.get(name, name): key for name, key in DEGREES.items()}
STANDARD = (
    "__future__",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "logging",
    "os",
    "typing",
    "warnings",
)
"""Modules that recipes import and that are run."""
EVEN = "Et*4|(t*4|)*14tmL"
"""Layers of DeepSeek-V3's 16 virtual stages (deepseek_v3.py of v0.1, map_pp_vp_to_layout)."""
SPECIAL = ("large_scale", "_dev", "fsdp")
"""Parts of the names of special recipes, which come first: of equals the last one is taken."""
KERNELS = {
    "fused_grouped_mlp": "cutedsl_fused_grouped_mlp",
    "narrow_attention": "fp8_dot_product_attention",
    "narrow_head": "fp8_output_proj",
}
STASH = "moe_paged_stash_buffer_size_factor_cuda"
USUAL_STASH = 1.2
"""What set_full_iter_cg_configs of v0.5 sets for graphs of the whole step of models with experts."""
MOMENTS = "exp_avg_dtype"
"""Type of both moments: no recipe keeps the second in another."""
ROUTER_FUSION, ROUTER_TYPE = "moe_router_fusion", "moe_router_dtype"
SQUARED_RELU = ("nemotron_3",)
"""Models whose base recipe sets use_fused_weighted_squared_relu."""
PLAIN_ROUTER = ("nemotron_3",)
"""Models whose recipes leave the router unfused (moe_router_fusion) unless they set it, up to v0.6; the scripts of the
others fuse it."""
WIDE: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("nemotron_3_super", "nvfp4"): {
        "high_precision_modules": ["attention", "latent", "mtp"],
        "num_layers_at_end_in_bf16": 14,
    },
    ("gpt_oss_20b", "nvfp4"): {"num_layers_at_end_in_bf16": 4},
}
"""What stays in bf16: te_quant.cfg of Nemotron-3-Super and nemotron_3_super_bf16_with_nvfp4_mixed (mixed_precision.py),
and the last layers of GPT-OSS 20B (gpt_oss/common.py), which recipes in NVFP4 set."""
RUN_SCRIPT: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("deepseek_v3", "h100"): {
        "moe_flex_dispatcher_backend": "deepep",
        "moe_a2a_overlap": True,
        "recompute_modules": ["mla_up_proj", "mlp"],
        "pp_layout": "Et|(tt|)*30mL",
    },
    **{
        ("deepseek_v3", device): {
            "pads_experts": True,
            "moe_shared_expert_overlap": True,
            "recompute_modules": ["mla_up_proj"],
            "pp_layout": EVEN,
        }
        for device in ("b200", "gb200")
    },
    **{
        (model, device): {"pads_experts": True}
        for model in ("qwen3_30b_a3b", "qwen3_235b_a22b")
        for device in ("h100", "b200", "gb200")
    },
}
"""What run_script.py of v0.1 sets for a model on a device."""
ROUTING = {"capacity_factor": 1.0, "pad_to_capacity": True}
"""apply_moe_token_drop: experts drop what is beyond their capacity and are padded to it."""
WIDE_ROUTER = ("deepseek_v3", "kimi_k2", "nemotron_3", "qwen3_next", "qwen35_vl")
"""Models whose providers or bridges set moe_router_dtype fp32; of the others a flexible dispatcher casts only the
probabilities (Megatron-Core, token_dispatcher.py)."""
BF16_STATES = ("deepseek_v3", "kimi_k2")
"""Models whose base recipe keeps moments in bf16 (use_precision_aware_optimizer, exp_avg_dtype)."""


def main(checkout: str, tag: str, target: str) -> None:
    """Write the recipes of one tag."""
    source = Checkout(checkout, tag)
    found = dict(source.recipes())
    entries = [entry for name, values in found.items() if (entry := recipe(name, values)) is not None]
    entries.sort(key=lambda entry: not any(word in entry["name"] for word in SPECIAL))
    document = {
        "source": f"NVIDIA-NeMo/Megatron-Bridge {tag}, {source.place}",
        "recipes": joined(entries),
    }
    Path(target).write_text(text_of(document), encoding="utf-8")


class Checkout:
    """Files of one tag of a git directory."""

    def __init__(self, path: str, tag: str) -> None:
        self.path, self.tag = path, tag
        self.files = self._git("ls-tree", "-r", "--name-only", tag).split()
        self.tables = [name for name in self.files if TABLE.fullmatch(name)]
        has_dataclasses = any(
            name.startswith("scripts/") and name.endswith("workload_base_configs.py") for name in self.files
        )
        self.place = FOLDER if self.tables or has_dataclasses else "src/megatron/bridge/perf_recipes"
        self.recipes = (
            self.matrices if self.tables else self.dataclasses if has_dataclasses else self.functions
        )
        self.modules: dict[str, ModuleType] = {}

    def _git(self, *words: str) -> str:
        command = ("git", "-C", self.path, *words)
        result = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 (git alone)
        return result.stdout

    def text(self, path: str) -> str:
        """Return the text of a file."""
        return self._git("show", f"{self.tag}:{path}")

    def matrices(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and fields of every compute type in the tables of v0.1."""
        for path in self.tables:
            table: Any = parse_yaml(self.text(path), path)
            model = path.rpartition("/")[2].removesuffix(TABLE_END)
            for device, sizes in table["perf_matrix"].items():
                for size, types in sizes.items():
                    for kind in (name for name in types if name != "common"):
                        values = {**types["common"], **(types[kind] or {})}
                        devices = int(size.removeprefix("num_gpus_"))
                        yield f"{model}_{device}_{kind}_config", _of_table(values, devices, (model, device))

    def dataclasses(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and fields of every workload configuration."""
        place = next(p for p in self.files if p.endswith(("performance/utils/utils.py", "performance/utils/helpers.py"))
                     and "class WorkloadBaseConfig" in self.text(p))  # fmt: skip
        text = self.text(place)
        start = text.index("class WorkloadBaseConfig")
        body = text[start : text.index("\n\n\n", start)]
        head = "from dataclasses import *\nfrom typing import *\n"
        names: dict[str, Any] = {"__name__": __name__}
        exec(head + "@dataclass\n" + body, names)  # noqa: S102 (a dataclass of the release)
        for path in self.files:
            if path.startswith("scripts/") and path.endswith("workload_base_configs.py"):
                plain = "\n".join(
                    line for line in self.text(path).split("\n") if "import WorkloadBase" not in line
                )
                space = dict(names)
                exec(head + plain, space)  # noqa: S102
                for name, value in space.items():
                    if is_dataclass(value) and not isinstance(value, type) and not name.startswith("BASE"):
                        yield name.lower(), {**asdict(value), STASH: self._stash(path, value)}

    def _stash(self, path: str, value: Any) -> float | None:  # noqa: ANN401 (a dataclass of the release)
        """Return the room of pages of a configuration, which the functions beside it set for graphs of whole steps."""
        beside = [
            name for name in self.files if name.startswith(path.rpartition("/")[0]) and "pretrain" in name
        ]
        stashes = any("moe_paged_stash = True" in self.text(name) for name in beside)
        scope = getattr(value, "cuda_graph_scope", None) or []
        whole = "full_iteration" in (
            getattr(value, "cuda_graph_impl", None),
            *([scope] if isinstance(scope, str) else scope),
        )
        return USUAL_STASH if stashes and whole else None

    def functions(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield name and recorded settings of every recipe function."""
        folder = "src/megatron/bridge/perf_recipes/"
        for path in self.files:
            if path.startswith(folder) and path.count("/") == 6 and not path.endswith("__init__.py"):
                module = self.module(path[4:-3].replace("/", "."))
                for name, function in vars(module).items():
                    if (
                        name.endswith("_config")
                        and "_pretrain_" in name
                        and name[0] != "_"
                        and getattr(function, "__module__", "") == module.__name__
                    ):
                        yield name, _fields(function())

    def module(self, name: str) -> ModuleType:
        """Return a module of the recipes; what it imports from elsewhere is recorded, not run."""
        if name not in self.modules:
            path = "src/" + name.replace(".", "/")
            path = f"{path}.py" if f"{path}.py" in self.files else f"{path}/__init__.py"
            module = self.modules[name] = ModuleType(name)
            module.__file__ = path
            module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
            exec(self.text(path), module.__dict__)  # noqa: S102
        return self.modules[name]

    def _import(self, name: str, *_: object, **__: object) -> object:
        if name.startswith(("megatron.bridge.perf_recipes", "megatron.bridge.recipes")):
            return self.module(name)
        if name.partition(".")[0] in STANDARD:
            return importlib.import_module(name)
        return _Torch() if name == "torch" else _Stub()


class _Stub:
    """Stands for a module that is not run: what is called gives a recorder."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a stand-in)
        return _apply_flex if name == "apply_flex_dispatcher_backend" else _Recorder()


DTYPES = ("float32", "bfloat16", "float16", "uint8")
"""Types of PyTorch that recipes name; a router's, which Megatron-Core compares with a word, has no effect so."""


class _Torch(_Stub):
    """Stands for PyTorch, of which recipes name types of numbers."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a stand-in)
        return f"torch.{name}" if name in DTYPES else super().__getattr__(name)


def _apply_flex(model: Any, backend: str | None) -> None:  # noqa: ANN401 (a stand-in)
    """Choose a flexible dispatcher as training/flex_dispatcher_backend.py does on a device that has it."""
    if backend is not None:
        model.moe_token_dispatcher_type, model.moe_flex_dispatcher_backend = "flex", backend


class _Recorder:
    """Record attributes as they are set; an attribute that was never set is a recorder of its own."""

    def __init__(self, values: Mapping[str, Any] = {}) -> None:
        vars(self).update(values)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a stand-in)
        if name.startswith("__"):
            raise AttributeError(name)
        part = _Recorder()
        setattr(self, name, part)
        return part

    def __call__(self, *_: object, **values: object) -> _Recorder:
        return _Recorder(values)

    def __or__(self, _: object) -> _Recorder:
        return self

    __ror__ = __or__

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return ()

    def __bool__(self) -> bool:
        return bool(vars(self))


def _fields(cfg: Any) -> dict[str, Any]:  # noqa: ANN401 (a stand-in)
    model, overlap, ddp, types, train, optimizer = (
        {
            name: value
            for name, value in getattr(part, "__dict__", {}).items()
            if not isinstance(value, _Recorder)
        }
        for part in (cfg.model, cfg.comm_overlap, cfg.ddp, cfg.mixed_precision, cfg.train, cfg.optimizer)
    )
    full = model.get("recompute_granularity") == "full"
    return {
        **{name: model.get(name) for name in DEGREES.values()},
        "micro_batch_size": train.get("micro_batch_size"),
        "cuda_graph_impl": model.get("cuda_graph_impl"),
        "cuda_graph_scope": model.get("cuda_graph_scope") or model.get("cuda_graph_modules") or [],
        "recompute_modules": None if full else model.get("recompute_modules"),
        "recompute_num_layers": model.get("recompute_num_layers") if full else None,
        "cpu_offloading_num_layers": model.get("cpu_offloading_num_layers")
        if model.get("cpu_offloading")
        else None,
        "moe_flex_dispatcher_backend": model.get("moe_flex_dispatcher_backend")
        if model.get("moe_token_dispatcher_type") == "flex"
        else None,
        "moe_a2a_overlap": overlap.get("overlap_moe_expert_parallel_comm") is True,
        "use_megatron_fsdp": ddp.get("use_megatron_fsdp") is True,
        "cutedsl_fused_grouped_mlp": model.get("use_transformer_engine_op_fuser") is True,
        "fp8_dot_product_attention": types.get("fp8_dot_product_attention") is True,
        "fp8_output_proj": model.get("fp8_output_proj") is True,
        STASH: model.get(STASH) if model.get("moe_paged_stash") is True else None,
        MOMENTS: optimizer.get("exp_avg_dtype")
        if optimizer.get("use_precision_aware_optimizer") is True
        else None,
        ROUTER_FUSION: model.get(ROUTER_FUSION) is True,
        ROUTER_TYPE: model.get(ROUTER_TYPE),
        "pp_layout": model.get("pipeline_model_parallel_layout"),
        "num_gpus": None,
    }


def _of_table(values: Mapping[str, Any], devices: int, run: tuple[str, str]) -> dict[str, Any]:
    """Return the fields of a row of a table of v0.1, with what the script sets for its model on its device."""
    sharded = values.get("use_megatron_fsdp") or values.get("fsdp")
    return {
        **{key: values.get(name) for name, key in TABLE_DEGREES.items()},
        "micro_batch_size": values.get("mbs"),
        "num_gpus": devices,
        "use_megatron_fsdp": bool(sharded),
        "cuda_graph_impl": "local" if values.get("cuda_graphs") else "none",
        "cuda_graph_scope": "full",
        "recompute_num_layers": values.get("recompute_num_layers"),
        "cpu_offloading_num_layers": values.get("cpu_offloading_num_layers"),
        **RUN_SCRIPT.get(run, {}),
    }


def recipe(name: str, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the entry of a recipe; None for fine-tuning and for models that are not in the catalogue."""
    match = NAME.fullmatch(name)
    if match is None or any(word in name for word in ("sft", "lora", "peft")):
        return None
    model = MODELS.get(match["model"].removesuffix("_pretrain").removesuffix("_pretrain_config"))
    if model is None:
        return None
    types = (
        (match["types"] or "")
        .replace("fp8cs", "fp8_cs")
        .replace("fp8mx", "fp8_mx")
        .replace("fp8sc", "fp8_sc")
    )
    if not types:
        return None
    described = load_model(model)
    entry = {
        "name": name,
        "model": model,
        "kind": kind_of(described),
        "active_width": active_width(described),
        "num_layers": described.num_layers,
        "device": match["device"],
        "architecture": ARCHITECTURES[match["device"]],
        "compute": TYPES[types][0],
        "degrees": _degrees(
            values, 0 if any(word in name for word in SPECIAL) else int(match["devices"] or 0)
        ),
        "layout": _layout(values, described.is_moe, match["model"]),
    }
    states = match["model"].startswith(BF16_STATES) and not values.get("use_megatron_fsdp")
    if states or values.get(MOMENTS) == "torch.bfloat16":
        entry["workload"] = {"precision": {"moments": "bf16"}}
    if wide := WIDE.get((match["model"].removesuffix("_pretrain"), types)):
        entry["workload"] = {"precision": {**wide}}
    return entry


def _degrees(values: Mapping[str, Any], named: int) -> dict[str, int]:
    """Return the degrees; `named` are the devices of the recipe's name."""
    degrees = {name: values.get(key) or 1 for name, key in DEGREES.items()}
    match = values.get("num_gpus") or named
    return {
        **degrees,
        "zero": 3 if values.get("use_megatron_fsdp") else 1,
        **({"micro_batch_size": batch} if (batch := values.get("micro_batch_size")) else {}),
        **({"devices": match} if match else {}),
    }


def _layout(values: Mapping[str, Any], moe: bool, model: str) -> dict[str, Any]:
    scope = values.get("cuda_graph_scope") or []
    implementation = values.get("cuda_graph_impl") or "none"
    padded = bool(values.get("pads_experts"))
    scope = [scope] if isinstance(scope, str) else scope
    layout: dict[str, Any] = {"graphs": launch_graphs(implementation, scope, padded=padded)}
    if moe:
        layout["dispatcher"] = values.get("moe_flex_dispatcher_backend") or "all_to_all"
        layout["overlap"] = {"expert": bool(values.get("moe_a2a_overlap"))}
        if values.get("moe_shared_expert_overlap"):
            layout["overlap"]["shared_experts"] = True
    if padded:
        layout["routing"] = ROUTING
    if values.get("recompute_num_layers"):
        layout["recompute"] = {"granularity": "full", "num_layers": values["recompute_num_layers"]}
    elif values.get("recompute_modules"):
        layout["recompute"] = {"granularity": "selective", "modules": sorted(values["recompute_modules"])}
    if values.get("cpu_offloading_num_layers"):
        layout["offload"] = {"activation_layers": values["cpu_offloading_num_layers"]}
    if kernels := _kernels(values, moe, model):
        layout["kernels"] = kernels
    if isinstance(values.get("pp_layout"), str):
        layout["stage_layers"] = stage_layers(values["pp_layout"])
    return layout


def _kernels(values: Mapping[str, Any], moe: bool, model: str) -> dict[str, Any]:
    kernels: dict[str, Any] = {name: True for name, key in KERNELS.items() if values.get(key)}
    if moe and (stash := values.get(STASH)):
        kernels["paged_stash"] = stash
    if moe and (values.get(ROUTER_TYPE) or ("fp32" if model.startswith(WIDE_ROUTER) else "")) == "fp32":
        kernels["wide_router"] = True
    if model.startswith(SQUARED_RELU):
        kernels["weighted_ungated"] = True
    plain = model.startswith(PLAIN_ROUTER) and not values.get(ROUTER_FUSION)
    if plain or (moe and values.get(ROUTER_FUSION) is False):
        kernels["fused_router"] = False
    return kernels


def stage_layers(text: str) -> list[int]:
    """Return the decoder layers of every stage of a layout such as "Et*4|(t*4|)*14tmL"."""
    while text != (text := re.sub(r"\(([^()]*)\)\*(\d+)", lambda match: match[1] * int(match[2]), text)):
        pass
    text = re.sub(r"([EtmL])\*(\d+)", lambda match: match[1] * int(match[2]), text)
    return [stage.count("t") for stage in text.split("|")]


def joined(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries that differ in their name and compute type only as one, with a name for each type."""
    groups: dict[str, dict[str, Any]] = {}
    for entry in entries:
        plain = {name: value for name, value in entry.items() if name not in ("name", "compute")}
        special = any(word in entry["name"] for word in SPECIAL)
        key = json.dumps([special, plain], sort_keys=True)
        group = groups[key] = groups.pop(key, {"names": {}, **plain})
        group["names"][entry["compute"]] = entry["name"]
    return list(groups.values())


def text_of(document: Mapping[str, Any]) -> str:
    """Return the text of a data file, one recipe on each line."""
    rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in document["recipes"])
    return f'{{\n "source": {json.dumps(document["source"])},\n "recipes": [\n  {rows}\n ]\n}}\n'


if __name__ == "__main__":
    main(*sys.argv[1:])
