"""A question as a Primus experiment: Megatron's settings as overrides of Primus' presets, with its own schedules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from forescale.errors import unsupported_by
from forescale.frameworks.megatron.laws import check_laws
from forescale.frameworks.megatron.write_layout import Settings, hybrid_pattern
from forescale.frameworks.megatron.writer import STEPS, all_settings
from forescale.frameworks.primus.reader import SCHEDULES
from forescale.frameworks.writing import (
    PLACEHOLDER,
    Files,
    Writer,
    allocator,
    filled,
    nodes_of,
    variables_of_nodes,
)
from forescale.question import Question
from forescale.spec.layout import Layout, Recompute

EXPERIMENT = "experiment.yaml"
LIMITED: Final = {"zb-1p": 1, "zb-2p": 2}
"""Schedules that are the heuristic of zero bubbles under a limit (pp_max_mem) of so many times pp."""

SPELT: Final = {"layernorm_epsilon": "norm_epsilon"}
"""Keys that Primus' presets spell as flags, not as Megatron-LM's fields are."""
UNLISTED: Final = ("beta_fast", "beta_slow")
"""Fields of Megatron-LM's latent attention that none of Primus' presets has."""


class PrimusWriter(Writer):
    """Experiments for Primus' Megatron backend; run in its folder by its own script."""

    title = "Primus experiment in YAML"
    frameworks = ("primus",)
    no_vision = "what is written for Primus are its pre-trainings of text"
    endings: Mapping[str, str] = {"": ".yaml"}

    def write(self, question: Question) -> Files:
        """Return the experiment; settings that Primus has no key for are left out."""
        check_laws(question)
        if hybrid_pattern(question.model):
            raise unsupported_by("primus", f"{question.model.name}, a hybrid")
        cluster = question.cluster
        text = ""
        for part, settings in primus_settings(question).items():
            text += f"      # {part.lower()}\n"
            text += "".join(
                f"      {key}: {_yaml(value)}\n" for key, value in settings.items() if value is not None
            )
        if question.workload.tokens is None:
            text += f"      train_iters: {STEPS}  # {PLACEHOLDER}\n"
        launch = f"EXP=$PWD/{EXPERIMENT} bash ${{PRIMUS_PATH:-$HOME/Primus}}/examples/run_pretrain.sh"
        return Files(
            texts={
                EXPERIMENT: filled("primus", EXPERIMENT, name=json.dumps(question.model.name), overrides=text)
            },
            main=EXPERIMENT,
            launch=f"env {variables_of_nodes(cluster)} GPUS_PER_NODE={nodes_of(cluster)[1]} {launch}",
            variables=allocator(question),
        )


def primus_settings(question: Question) -> dict[str, Settings]:
    """Return the overrides of a question: Megatron's settings, and what Primus has beside them."""
    settings = all_settings(question)
    layout = question.layout
    model = settings["MODEL"]
    settings["MODEL"] = {SPELT.get(key, key): value for key, value in model.items() if key not in UNLISTED}
    settings["MODEL"] |= {"add_position_embedding": question.model.learned_positions > 0}
    settings["LAYOUT"] |= _schedule(layout) | _turbo(layout) | _listed(layout.recompute)
    return settings


def _schedule(layout: Layout) -> Settings:
    """Return the schedule that Primus' pipeline runs; interleaved 1F1B is Megatron-LM's own."""
    names = {ours: theirs for theirs, ours in SCHEDULES.items()}
    if layout.pp > 1 and layout.schedule in LIMITED:
        heuristic = {
            "pp_algorithm": names["zb-unlimited"],
            "pp_max_mem": LIMITED[layout.schedule] * layout.pp,
        }
        return {"patch_primus_pipeline": True, **heuristic}
    if layout.pp == 1 or layout.schedule is None or layout.schedule not in names:
        return {}
    return {"patch_primus_pipeline": True, "pp_algorithm": names[layout.schedule]}


def _turbo(layout: Layout) -> Settings:
    """Return what Primus-Turbo does instead of Transformer Engine and Megatron's dispatcher."""
    one, once = layout.kernels.expert_kernels == "one", layout.dispatcher == "deepep"
    if not (one or once):
        return {}
    settings: Settings = {
        "enable_primus_turbo": True,
        "use_turbo_grouped_gemm": one,
        "use_turbo_deepep": once,
    }
    if once:
        settings |= {"moe_token_dispatcher_type": "alltoall", "moe_flex_dispatcher_backend": None}
    return settings


def _listed(recompute: Recompute) -> Settings:
    return {"recompute_layer_ids": list(recompute.layer_ids)} if recompute.layer_ids else {}


def _yaml(value: object) -> str:
    """Return a value on one line; words that YAML would take for something else are quoted."""
    if isinstance(value, str):
        return value if value.replace("_", "").isalnum() and value != "none" else json.dumps(value)
    return json.dumps(value)
