"""A question as a launch script of Megatron-LM."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from forescale.frameworks.megatron.arguments import flag_of, known_flags
from forescale.frameworks.megatron.laws import check_laws
from forescale.frameworks.megatron.write_layout import (
    Settings,
    layout_settings,
    model_settings,
    run_settings,
)
from forescale.frameworks.writing import PLACEHOLDER, Files, Writer, filled, torchrun
from forescale.question import Question

LAUNCH = "run.sh"
ONE_QUEUE = (
    "export CUDA_DEVICE_MAX_CONNECTIONS=1  # collectives start before the kernels that wait for them\n"
)
STEPS = 100_000
"""Steps of a run of which nobody said how long it is."""


class MegatronWriter(Writer):
    """Bash scripts that start Megatron-LM by torchrun."""

    title = "Megatron-LM launch script"
    frameworks = ("megatron-core",)
    no_vision = "Megatron-LM's programs on images (examples/multimodal) have towers of their own"
    endings: Mapping[str, str] = {"": ".sh"}

    def write(self, question: Question) -> Files:
        """Return the script; what its flags have no word for is left out."""
        check_laws(question)
        return Files(texts={LAUNCH: launch_script(question)}, main=LAUNCH, launch=f"bash {LAUNCH}")


def launch_script(question: Question) -> str:
    """Return a script that sets the flags of a question; whether Megatron-LM takes them together is not asked."""
    settings = all_settings(question)
    steps = settings["RUN"].pop("train_iters")
    program = "pretrain_hybrid.py" if settings["MODEL"]["hybrid_layer_pattern"] else "pretrain_gpt.py"
    exports = ONE_QUEUE if question.layout.zero <= 1 else ""
    if question.layout.allocator == "expandable_segments":
        exports += "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    return filled(
        "megatron",
        LAUNCH,
        steps=str(steps or STEPS),
        open="" if steps else f"  # {PLACEHOLDER}: steps of the whole run",
        exports=exports,
        arrays="".join(array(name, part) for name, part in settings.items()),
        torchrun=torchrun(question.cluster),
        program=program,
        words=" ".join(f'"${{{name}[@]}}"' for name in (*settings, "RATES", "DATA")),
    )


def all_settings(question: Question) -> dict[str, Settings]:
    """Return Megatron's settings of a question: of the model, the layout and the run."""
    model = model_settings(question.model, seq_len=question.workload.seq_len)
    layout = layout_settings(question)
    if "hybrid_layer_pattern" in layout:  # with its stages
        model["hybrid_layer_pattern"] = layout.pop("hybrid_layer_pattern")
    return {"MODEL": model, "LAYOUT": layout, "RUN": run_settings(question)}


def array(name: str, settings: Settings) -> str:
    """Return settings as an array of bash, a flag on each line."""
    lines = [f"    {shlex.join(flag)}" for flag in flags(settings)]
    return "\n".join([f"{name}=(", *lines, ")\n"])


def flags(settings: Mapping[str, object]) -> list[list[str]]:
    """Return the words of each setting that is said; a switch is said where it is not as the flag leaves it."""
    result = []
    for key, value in settings.items():
        flag, kind = flag_of(key) or ("", "")
        if not flag:
            continue
        if kind != "value":
            if value is (kind == "true"):
                result.append([flag])
            elif value is False and (opposite := f"--no-{flag[2:]}") in known_flags():
                result.append([opposite])
        elif value is not None:
            values = value if isinstance(value, list) else [value]
            result.append([flag, *map(str, values)])
    return result
