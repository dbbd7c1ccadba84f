"""What Megatron-LM refuses beyond what no layout can have, in its own words' terms: checked before anything is written.

Facts: Megatron-LM core 0.19.2 (2026), megatron/training/arguments.py, core/transformer/transformer_config.py and
core/parallel_state.py; tests/oracles asks its parser about every one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from forescale.errors import SpecError
from forescale.question import Question


class Law(NamedTuple):
    """One thing that Megatron-LM refuses."""

    breaks: Callable[[Question], bool]
    told: str


LAWS = (
    Law(
        lambda q: 0 < q.model.learned_positions < q.workload.seq_len,
        "sequences are longer than the learned table of positions (max_position_embeddings)",
    ),
    Law(
        lambda q: q.model.num_mtp_layers > 0 and q.model.learned_positions > 0,
        "multi-token prediction needs rotary positions or none",
    ),
    Law(
        lambda q: (
            q.layout.pp > 1
            and q.layout.axis_order == ("tp", "cp", "pp", "dp")
            and (q.layout.expert_dp if q.model.is_moe else q.layout.cp * q.layout.dp) != q.layout.dp
        ),
        "the order tp,cp,pp,dp (--use-tp-pp-dp-mapping) needs as many data-parallel ranks of experts (cp x dp / (ep x "
        "etp / tp)) as of the rest",
    ),
    Law(
        lambda q: (
            q.layout.zero > 0
            and q.model.is_moe
            and q.layout.dp_replicate > 1
            and q.layout.expert_dp % q.layout.dp_replicate != 0
        ),
        "replicas of sharded states (--num-distributed-optimizer-instances) divide the data-parallel ranks of experts",
    ),
    Law(
        lambda q: (
            q.workload.precision.compute == "fp8"
            and q.workload.precision.recipe == "delayed"
            and q.layout.recompute.granularity == "selective"
            and bool({"moe_act", "layernorm"} & set(q.layout.recompute.modules))
        ),
        "delayed scaling of fp8 does not go with recompute of moe_act or layernorm; take another fp8_recipe",
    ),
    Law(
        lambda q: q.layout.zero > 1 and q.workload.optimizer not in ("adamw", "sgd"),
        "Megatron-FSDP (zero 2 and 3) has the optimizers adamw and sgd",
    ),
    Law(
        lambda q: q.layout.cp > 1 and q.workload.seq_len % (2 * q.layout.cp) != 0,
        "sequences are no multiple of 2 x cp",
    ),
    Law(
        lambda q: q.layout.routing.pad_to_capacity and q.layout.dispatcher == "deepep",
        "DeepEP does not pad experts to their capacity; take hybridep or all_to_all",
    ),
    Law(
        lambda q: q.layout.vpp > 1 and not q.layout.overlap.pipeline and q.layout.pp == 2,
        "virtual stages on 2 ranks need their messages overlapped (overlap.pipeline)",
    ),
)


def check_laws(question: Question) -> None:
    """Refuse what Megatron-LM refuses.

    Raises
    ------
    SpecError
        It names the framework and says which limit is broken.
    """
    assert question.framework is not None
    for law in LAWS:
        if law.breaks(question):
            msg = f"{question.framework.name} refuses this layout: {law.told}"
            raise SpecError(msg)
