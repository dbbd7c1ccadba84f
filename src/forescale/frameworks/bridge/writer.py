"""A question as a recipe of Megatron-Bridge: a Python file that sets the fields of a ConfigContainer and trains."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from forescale.errors import unsupported_by
from forescale.frameworks.bridge.reader import FROZEN, fields, peft_lines
from forescale.frameworks.megatron.laws import check_laws
from forescale.frameworks.megatron.writer import STEPS, all_settings
from forescale.frameworks.reading import packaged
from forescale.frameworks.writing import PLACEHOLDER, Files, Writer, allocator, filled, torchrun
from forescale.question import Question

RECIPE = "recipe.py"
SAID_AGAIN = ("num_experts", "swiglu", "multi_latent_attention")
"""What of a model degrees and kernels are read by."""
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "uint8"}
WORD = "moe_router_dtype"
"""A type that Megatron-Core takes as a word."""
LISTS = ("moe_layer_freq", "linear_attention_freq", "window_attn_skip_freq", "no_rope_freq")


class BridgeWriter(Writer):
    """Recipes over Megatron-Bridge's plain GPT, whose every field that matters is set."""

    title = "Megatron-Bridge recipe in Python"
    frameworks = ("megatron-bridge", "nemo")
    endings: Mapping[str, str] = {"": ".py"}

    def write(self, question: Question) -> Files:
        """Return the recipe; what the container has no field for is left out."""
        check_laws(question)
        if question.model.vision is not None:
            return _with_tower(question)
        parts = all_settings(question)
        settings = {key: value for part in parts.values() for key, value in part.items()}
        if settings.get("hybrid_layer_pattern"):
            raise unsupported_by("megatron-bridge", f"{question.model.name}, a hybrid")
        latent = bool(settings.get("multi_latent_attention"))
        module, provider = (
            ("mla_provider", "MLAModelProvider") if latent else ("gpt_provider", "GPTModelProvider")
        )
        imported, adapters = peft_lines(question.workload.trainable)
        quick = settings.get("quick_geglu")
        if quick:  # gated, too
            settings["swiglu"] = True
            imported = f"from megatron.core.fusions.fused_bias_geglu import quick_gelu\n{imported}"
        plain = "torch.nn.functional.silu" if settings.get("swiglu") else "torch.nn.functional.gelu"
        lines = f"    cfg.model.activation_func = {'quick_gelu' if quick else plain}\n"
        lines += _body(question, settings) + adapters
        overrides = {"imported": imported, "module": module, "provider": provider, "lines": lines}
        return _files(question, filled("bridge", "recipe.txt", **overrides))


def _with_tower(question: Question) -> Files:
    """Return the recipe of a model that Megatron-Bridge builds by its name, whose sizes are not said again."""
    name, trainable = packaged("bridge")["towers"].get(question.model.name), question.workload.trainable
    if name is None:
        known = ", ".join(packaged("bridge")["towers"])
        fix = f"it has recipes for {known}"
        raise unsupported_by("megatron-bridge", f"the tower of {question.model.name}", fix)
    parts = all_settings(question)
    imported, adapters = peft_lines(trainable)
    named = {key: parts["MODEL"].get(key) for key in SAID_AGAIN}
    settings = named | {
        key: value for part, table in parts.items() if part != "MODEL" for key, value in table.items()
    }
    lines = _body(question, settings)
    for field, frozen in FROZEN.items():
        lines += f"    cfg.model.{field} = {set(frozen) <= set(trainable.frozen)}\n"
    text = filled("bridge", "tuning.txt", imported=imported, name=name, lines=lines + adapters)
    return replace(_files(question, text), left=("images",))


def _files(question: Question, text: str) -> Files:
    return Files(
        texts={RECIPE: text},
        main=RECIPE,
        launch=f"{torchrun(question.cluster)} {RECIPE}",
        variables=allocator(question),
    )


def _body(question: Question, settings: dict[str, object]) -> str:
    """Return the lines that set fields, whatever made the model."""
    layout = question.layout
    overlaps = layout.overlap.pipeline and layout.vpp > 1  # Megatron-Core turns it off without virtual stages
    known = _known({**settings, "overlap_p2p_comm": overlaps})
    text = "".join(f"    cfg.{line}\n" for line in _lines(known))
    dtype = DTYPES[question.workload.precision.activations]
    text += "".join(
        f"    cfg.mixed_precision.{name} = torch.{dtype}\n" for name in ("params_dtype", "pipeline_dtype")
    )
    text += "    cfg.model.should_pad_vocab = True\n"
    text += f"    cfg.model.seq_length = {question.workload.seq_len}\n"
    if settings.get("cpu_offloading_num_layers"):
        text += "    cfg.model.cpu_offloading = True\n"
    if question.workload.tokens is None:
        text += f"    cfg.train.train_iters = {STEPS}  # {PLACEHOLDER}\n"
    return text


def _known(settings: dict[str, object]) -> dict[str, object]:
    """Return settings as the container has them: types of gradients by what is in fp32."""
    result = dict(settings)
    if result.get("bf16"):
        result["accumulate_allreduce_grads_in_fp32"] = not result.pop("grad_reduce_in_bf16", False)
    for key in LISTS:
        if isinstance(text := result.get(key), str):
            pairs = (run.strip("[]").split("]*") for run in text.split("+"))
            result[key] = [int(flag) for flag, count in pairs for _ in range(int(count))]
    if isinstance(window := result.get("window_size"), str):
        result["window_size"] = tuple(int(side) for side in window.split(","))
    return result


def _lines(settings: dict[str, object]) -> list[str]:
    keys, inverted = fields(latent=bool(settings.get("multi_latent_attention")))
    lines = []
    for key, value in settings.items():
        if value is None:
            continue
        if key in inverted:
            lines.append(f"{inverted[key]} = {not value}")
        elif key in keys:
            is_type = key.endswith("_dtype") and key != WORD
            lines.append(f"{keys[key]} = {f'torch.{DTYPES[str(value)]}' if is_type else repr(value)}")
    return lines
