"""Sizes of models in the words of torchtitan's own classes and builders, by way of Hugging Face's keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

from forescale.errors import SpecError
from forescale.frameworks.huggingface import read_huggingface
from forescale.frameworks.huggingface.writer import config_of
from forescale.frameworks.torchtitan.job import Call
from forescale.frameworks.torchtitan.keys import flavors
from forescale.graph.counts import count_parameters
from forescale.spec.model import Model

KEYS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "n_kv_heads": "num_key_value_heads",
        "head_dim": "head_dim",
        "vocab_size": "vocab_size",
        "enable_weight_tying": "tie_word_embeddings",
        "hidden_dim": "intermediate_size",
        "inter_dim": "intermediate_size",
        "dense_hidden_dim": "intermediate_size",
        "moe_inter_dim": "moe_intermediate_size",
        "moe_hidden_dim": "moe_intermediate_size",
        "num_experts": "num_experts",
        "top_k": "num_experts_per_tok",
        "router_top_k": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
        "n_dense_layers": "first_k_dense_replace",
        "num_expert_groups": "n_group",
        "num_limited_groups": "topk_group",
        "router_num_expert_groups": "n_group",
        "router_num_limited_groups": "topk_group",
        **{
            name: name
            for name in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        },
    }
)
"""torchtitan's words by Hugging Face's keys."""
ATTENTION: Final = ("dim", "n_layers", "n_heads", "n_kv_heads")
LATENT: Final = ("dim", "n_layers", "n_heads", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
                 "v_head_dim", "n_dense_layers")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """What makes a model of any size: a class of arguments (0.2), or a function that makes layers (0.3)."""

    name: str
    module: str
    """torchtitan's model whose code trains it."""
    types: tuple[str, ...]
    """Architectures that it can build."""
    words: tuple[str, ...]
    inside: tuple[str, ...] = ()
    """Words of moe_args, of models with experts."""
    model: str = ""
    """Class of the whole model, where the builder makes layers only."""


BUILDERS: Final[Mapping[str, tuple[Builder, ...]]] = MappingProxyType(
    {
        "0.2": (
            Builder(
                name="Qwen3ModelArgs",
                module="qwen3",
                types=("llama", "qwen3", "mixtral", "qwen3_moe"),
                words=(*ATTENTION, "head_dim", "hidden_dim", "vocab_size", "enable_weight_tying", "moe_inter_dim"),
                inside=("num_experts", "top_k"),
            ),
            Builder(
                name="DeepSeekV3ModelArgs",
                module="deepseek_v3",
                types=("deepseek_v3", "deepseek_v2"),
                words=(*LATENT, "inter_dim", "moe_inter_dim", "vocab_size"),
                inside=("num_experts", "num_shared_experts", "top_k", "num_expert_groups", "num_limited_groups"),
            ),
        ),
        "0.3": (
            Builder(
                name="_build_llama3_layers",
                module="llama3",
                types=("llama",),
                words=(*ATTENTION, "hidden_dim"),
                model="Llama3Model",
            ),
            Builder(
                name="_build_qwen3_layers",
                module="qwen3",
                types=("qwen3",),
                words=(*ATTENTION, "head_dim", "hidden_dim"),
                model="Qwen3Model",
            ),
            Builder(
                name="_build_qwen3_moe_layers",
                module="qwen3",
                types=("qwen3_moe",),
                words=(*ATTENTION, "head_dim", "moe_hidden_dim", "num_experts", "top_k"),
                model="Qwen3Model",
            ),
            Builder(
                name="_build_dsv3_layers",
                module="deepseek_v3",
                types=("deepseek_v3", "deepseek_v2"),
                words=(*LATENT, "dense_hidden_dim", "moe_hidden_dim", "num_experts", "num_shared_experts",
                       "router_top_k", "router_num_expert_groups", "router_num_limited_groups"),
                model="DeepSeekV3Model",
            ),
        ),
    }
)  # fmt: skip
SCORES: Final = {"deepseek_v2": "softmax", "deepseek_v3": "sigmoid"}
"""How routers score experts: DeepSeek-V3's keep a bias per expert beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A model as a builder is told it."""

    builder: Builder
    config: Mapping[str, Any]
    """Hugging Face's keys."""

    @property
    def kind(self) -> str:
        """The architecture."""
        return str(self.config["model_type"])

    @property
    def routed(self) -> bool:
        """Whether there are experts."""
        return "num_experts_per_tok" in self.config

    def words(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Return the sizes under torchtitan's words, those that the model does not have left out."""
        config = dict(self.config)
        config["num_experts"] = next((config[key] for key in COUNTS if key in config), None)
        if self.kind == "mixtral":
            config["moe_intermediate_size"] = config["intermediate_size"]
        found = {name: config.get(KEYS[name]) for name in names}
        if "q_lora_rank" in found:
            found["q_lora_rank"] = found["q_lora_rank"] or 0
        return {name: value for name, value in found.items() if value is not None}


COUNTS: Final = ("num_experts", "n_routed_experts", "num_local_experts")


def flavor_of(model: Model, release: str) -> tuple[str, str] | None:
    """Return the module and the flavor that are this model in a release's registries; None if it has none."""
    known = flavors()
    for module in known["releases"][release]:
        for flavor, means in known["flavors"][module].items():
            named = isinstance(means, list) and means == [model.name, _trained(model)]
            if named and f"{module} {flavor}" not in known["later"].get(release, ()):
                return module, flavor
    return None


def sized(model: Model, release: str) -> Sized:
    """Return how a release builds a model that is not in its registries.

    Raises
    ------
    SpecError
        If none of its builders makes such a model.
    """
    plain = replace(model, num_mtp_layers=0)
    builders = {kind: builder for builder in BUILDERS[release] for kind in builder.types}
    if plain.layer_kinds and model.norm == "rms" and not model.learned_positions:
        try:
            config = config_of(plain, builders)
        except SpecError as error:
            msg = f"torchtitan has no model of such parts as {model.name}"
            raise SpecError(msg) from error
        found = Sized(builder=builders[config["model_type"]], config=config)
        if model.is_moe or found.builder.module != "deepseek_v3":
            return found
        raise SpecError(f"torchtitan builds latent attention with experts only; {model.name} has none")
    msg = f"torchtitan has no model of such parts as {model.name}: its norms or positions are others"
    raise SpecError(msg)


def model_of_sizes(call: Call, name: str) -> Model:
    """Return the model that a class of arguments, or a configuration with built layers, describes."""
    fields = dict(call.fields)
    builder = call.name
    predicting = fields.pop("mtp_layers", None)
    for part in list(fields.values()):
        if isinstance(part, Call) and (part.name.endswith("_layers") or part.name == "MoEArgs"):
            fields |= part.fields
            builder = part.name.rpartition(".")[2] if part.name.endswith("_layers") else builder
    config = {KEYS[word]: value for word, value in fields.items() if word in KEYS}
    config["model_type"] = _kind(builder, fields)
    config["q_lora_rank"] = config.get("q_lora_rank") or None
    config["n_routed_experts"] = config["num_local_experts"] = config.get("num_experts")
    if config["model_type"] == "mixtral":
        config["intermediate_size"] = config["moe_intermediate_size"]
    model = read_huggingface(config, name=name, where=f"line {call.line}: {call.name}").model
    depth = predicting.fields.get("num_mtp_layers", 0) if isinstance(predicting, Call) else 0
    return replace(model, num_mtp_layers=depth)


def _kind(builder: str, fields: Mapping[str, Any]) -> str:
    """Return the architecture that a builder makes of its words."""
    if builder == "Qwen3ModelArgs":
        dense, routed = ("qwen3", "qwen3_moe") if fields.get("qk_norm", True) else ("llama", "mixtral")
        return routed if fields.get("moe_enabled") else dense
    if "ModelArgs" in builder or "dsv3" in builder:
        return (
            "deepseek_v3"
            if "sigmoid" in (fields.get("score_func"), fields.get("router_score_func"))
            else "deepseek_v2"
        )
    kinds = {each.name: each.types[0] for each in BUILDERS["0.3"]}
    if builder not in kinds:
        msg = f"the model is built by {builder}; what can be read is built by {', '.join(kinds)}"
        raise SpecError(msg)
    return kinds[builder]


def _trained(model: Model) -> int:
    return count_parameters(replace(model, num_mtp_layers=0)).total
