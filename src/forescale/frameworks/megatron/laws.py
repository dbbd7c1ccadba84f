"""What Megatron-LM refuses beyond what no layout can have: nothing is written that breaks it, and nothing read.

Facts: Megatron-LM core 0.19.2 (2026), megatron/training/arguments.py, core/transformer/transformer_config.py and
core/parallel_state.py, and these files of releases 0.4 to 0.19; tests/oracles asks its parser about every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import accumulate
from typing import NamedTuple

from forescale.errors import unsupported_by
from forescale.frameworks.megatron.run import LAYERS_IN_BF16, has_tower
from forescale.frameworks.megatron.write_layout import stage_sizes
from forescale.frameworks.settings import Settings
from forescale.question import Question
from forescale.spec.attention import FullAttention, LatentAttention
from forescale.spec.layout import Layout
from forescale.spec.model import Model
from forescale.spec.workload import Workload
from forescale.struct import Struct


class ParsedConfig(Struct, frozen=True, kw_only=True):
    """A model, how it is laid out and what it is trained on: of a question, or as a file says."""

    model: Model
    layout: Layout
    workload: Workload


class Law(NamedTuple):
    """One thing that Megatron-LM refuses."""

    breaks: Callable[[ParsedConfig], bool]
    message: str
    keys: tuple[str, ...]
    """Settings that say it."""
    core: bool = False
    """Whether Megatron-Core refuses it, whatever starts it; else the arguments of Megatron-LM's programs."""
    since: str = ""
    """Release of Megatron-Core from which it is refused, where older ones take the same settings."""
    unless: Callable[[Settings], bool] = lambda _: False
    """Whether settings are something else than the layout that is made of them."""
    but: tuple[str, ...] = ()
    """Frameworks on Megatron-Core that have it all the same."""


def _reads_from_elsewhere(q: ParsedConfig) -> bool:
    """Return whether a virtual stage starts with a layer that picks no keys for itself."""
    sizes = stage_sizes(q.model, q.layout)
    starts = (end - size for end, size in zip(accumulate(sizes), sizes, strict=True) if size)
    firsts = (q.model.layers[start].attention for start in starts)
    return any(isinstance(item, LatentAttention) and item.top_k and not item.indexer for item in firsts)


def _yarned(model: Model) -> bool:
    """Whether softmax attention, other than latent, has the positions of YaRN."""
    parts = (layer.attention for layer in model.layer_kinds)
    return any(isinstance(part, FullAttention) and part.rope.scaling == "yarn" for part in parts)


DEGREES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
)
LAWS = (
    Law(
        lambda q: 0 < q.model.learned_positions < q.workload.seq_len,
        "sequences are longer than the learned table of positions (max_position_embeddings)",
        ("max_position_embeddings", "seq_length"),
        unless=has_tower,
    ),
    Law(
        lambda q: q.model.num_mtp_layers > 0 and (q.model.learned_positions > 0 or _yarned(q.model)),
        "multi-token prediction needs rotary positions or none, and of YaRN's those of latent attention",
        ("mtp_num_layers", "position_embedding_type"),
    ),
    Law(
        lambda q: (
            q.layout.pp > 1
            and q.layout.axis_order == ("tp", "cp", "pp", "dp")
            and (q.layout.expert_dp if q.model.is_moe else q.layout.cp * q.layout.dp) != q.layout.dp
        ),
        "the order tp,cp,pp,dp (--use-tp-pp-dp-mapping) needs as many data-parallel ranks of experts (cp x dp / (ep x "
        "etp / tp)) as of the rest",
        ("use_tp_pp_dp_mapping", *DEGREES),
        core=True,
        since="0.11",
    ),
    Law(
        lambda q: (
            q.layout.zero > 0
            and q.model.is_moe
            and q.layout.dp_replicate > 1
            and q.layout.expert_dp % q.layout.dp_replicate != 0
        ),
        "replicas of sharded states (--num-distributed-optimizer-instances) divide the data-parallel ranks of experts",
        ("num_distributed_optimizer_instances", *DEGREES),
        core=True,
    ),
    Law(
        lambda q: (
            q.workload.precision.compute == "fp8"
            and q.workload.precision.recipe == "delayed"
            and q.layout.recompute.granularity == "selective"
            and bool({"moe_act", "layernorm"} & set(q.layout.recompute.modules))
        ),
        "delayed scaling of fp8 does not go with recompute of moe_act or layernorm; take another fp8_recipe",
        ("fp8", "fp8_recipe", "recompute_modules"),
        core=True,
        since="0.13",
    ),
    Law(
        lambda q: (
            q.workload.precision.compute == "fp8"
            and q.workload.precision.recipe == "delayed"
            and q.workload.precision.num_layers_in_bf16 > 0
        ),
        "delayed scaling of fp8 leaves no layer in bf16 (--first-last-layers-bf16); take another fp8_recipe",
        ("fp8", "fp8_recipe", "first_last_layers_bf16"),
        core=True,
    ),
    Law(
        lambda q: (
            q.workload.precision.compute in ("fp8", "mxfp8")
            and max(getattr(q.workload.precision, key) for key in LAYERS_IN_BF16)
            > q.model.num_layers // q.layout.pp
        ),
        "layers in bf16 at either end are more than those of a pipeline stage",
        ("first_last_layers_bf16", *LAYERS_IN_BF16),
        core=True,
    ),
    Law(
        lambda q: q.layout.zero > 1 and q.workload.optimizer not in ("adamw", "sgd"),
        "Megatron-FSDP (zero 2 and 3) has the optimizers adamw and sgd",
        ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2", "optimizer"),
    ),
    Law(
        lambda q: q.layout.cp > 1 and q.workload.seq_len % (2 * q.layout.cp) != 0,
        "sequences are not a multiple of 2 x cp",
        ("context_parallel_size", "seq_length"),
        unless=has_tower,
    ),
    Law(
        lambda q: q.layout.routing.pad_to_capacity and q.layout.dispatcher == "deepep",
        "DeepEP does not pad experts to their capacity; take hybridep or all_to_all",
        ("moe_pad_expert_input_to_capacity", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
        core=True,
        unless=lambda s: (
            s.text("moe_token_dispatcher_type") != "flex"
            or s.text("moe_flex_dispatcher_backend", "deepep") != "deepep"
        ),
    ),
    Law(
        lambda q: q.layout.vpp > 1 and not q.layout.overlap.pipeline and q.layout.pp == 2,
        "virtual stages on 2 ranks need their messages overlapped (overlap.pipeline)",
        ("overlap_p2p_comm", "pipeline_model_parallel_size"),
    ),
    Law(
        lambda q: q.layout.pp > 1 and _reads_from_elsewhere(q),
        "every stage starts with a layer that picks its keys, not with one that reads those of another stage",
        ("pipeline_model_parallel_size", "dsa_indexer_topk_freq", "dsa_indexer_skip_topk_offset"),
        core=True,
    ),
)
OF_FILES = (
    Law(
        lambda q: 0 < q.model.max_seq_len < q.workload.seq_len,
        "sequences are longer than max_position_embeddings, whatever positions are",
        ("max_position_embeddings", "seq_length"),
        unless=has_tower,
    ),
)
"""What can be read, and is never written."""
OF_LAUNCHES = (
    Law(
        lambda q: bool(q.layout.recompute.layer_ids),
        "full recompute takes all layers or the first of each stage (recompute.num_layers); listed layers are Primus'",
        ("recompute_layer_ids",),
        but=("primus",),
    ),
)
"""What is not written, and would not be in a file that runs."""


def check_laws(question: Question) -> None:
    """Refuse what Megatron-LM refuses.

    Raises
    ------
    SpecError
        It names the framework and says which limit is broken.
    """
    assert question.framework is not None
    name = question.framework.name
    laid = ParsedConfig(model=question.model, layout=question.layout, workload=question.workload)
    for law in (*LAWS, *OF_LAUNCHES):
        if name not in law.but and law.breaks(laid):
            raise unsupported_by(name, f"this layout: {law.message}")


def check_settings(
    settings: Settings, message: ParsedConfig, merged: Collection[str], framework: str
) -> None:
    """Refuse settings that Megatron-LM refuses together; what only its newer releases do is noted.

    So is what settings that are `merged` the file's break: that is asked, and no program has it. Megatron-Bridge has
    arguments of its own.

    Raises
    ------
    ReaderError
        It names the settings and what is allowed.
    """
    for law in (*LAWS, *OF_FILES):
        if framework == "megatron-bridge" and not law.core:
            continue
        if not law.breaks(message) or law.unless(settings):
            continue
        first, *others = [_given(settings, key) for key in law.keys if key in settings] or ["these settings"]
        text = f"{first} with {', '.join(others)}" if others else first
        if law.since or set(law.keys).intersection(merged):
            when = f" since core {law.since}" if law.since else ""
            settings.note(f"Megatron-LM refuses {text}{when}: {law.message}")
        else:
            settings.refuse(unsupported_by("Megatron-LM", f"{text}: {law.message}"))


def _given(settings: Settings, key: str) -> str:
    """Return a setting as it was given."""
    value, name = settings.get(key), settings.spell(key)
    return name if isinstance(value, bool) else f"{name} {' '.join(settings.words(key))}"
