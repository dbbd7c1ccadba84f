"""`forescale search --preset subramanian2024`: the search of that paper, in its own space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from forescale.cli.help import Rare
from forescale.cli.options import Asked, option
from forescale.errors import UnknownNameError, conflicts, missing, not_one_of, wrong_type
from forescale.limits import whole_of

if TYPE_CHECKING:
    from forescale.presets.subramanian2024 import Quirks, StudyResult
    from forescale.question import Question

STUDY = "subramanian2024"
_study = partial(option, panel=Rare("Preset subramanian2024"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyOptions:
    """What only this preset has."""

    tensor_parallel: Literal["1d", "2d", "summa"] | None = _study("Strategy to search.")
    without_quirk: list[str] | None = _study(
        "Peculiarity of the published code to leave out, or all. Repeatable.", "NAME"
    )


def with_own_length(question: Asked) -> Asked:
    """Return a question of sequences that the model was made for, if this preset is asked and none are given."""
    if question.plan.preset != STUDY or question.model is None or question.run.seq_len is not None:
        return question
    from forescale.io.named import model_of

    return replace(question, run=replace(question.run, seq_len=model_of(question.model).max_seq_len or None))


def search_study(
    question: Question,
    options: StudyOptions,
    *,
    fix: Sequence[str],
    top: int,
) -> StudyResult:
    """Return the configurations of the paper's space, fastest first."""
    from forescale.presets.subramanian2024 import search_subramanian2024

    if options.tensor_parallel is None:
        raise missing(
            "--tensor-parallel", f"--preset {STUDY} searches one strategy at a time: give 1d, 2d or summa"
        )
    if question.objective != "step_time":
        raise not_one_of(f"--objective of --preset {STUDY}", question.objective, ("step_time",))
    if question.workload.tokens is not None:
        raise conflicts(
            ["--tokens", f"--preset {STUDY}"], reason="it ranks steps, not runs", fix="leave --tokens out"
        )
    device = replace(question.cluster.device, hbm_bytes=question.memory_limit)
    return search_subramanian2024(
        question.model,
        replace(question.cluster, device=device),
        tensor_parallel=options.tensor_parallel,
        global_batch_size=question.workload.global_batch_size,
        seq_len=question.workload.seq_len,
        top=top,
        quirks=_quirks(options.without_quirk or ()),
        fixed=_fixed(fix),
    )


def _quirks(left_out: Sequence[str]) -> Quirks:
    from forescale.presets.subramanian2024 import Quirks

    known = tuple(asdict(Quirks()))
    names = [name.replace("-", "_") for name in left_out]
    for name in names:
        if name not in (*known, "all"):
            raise UnknownNameError("quirk", name, (*known, "all"))
    return Quirks(**{name: name not in names and "all" not in names for name in known})


def _fixed(fixes: Sequence[str]) -> dict[str, int]:
    values: dict[str, int] = {}
    for text in fixes:
        name, _, value = text.partition("=")
        if (number := whole_of(value)) is None:
            raise wrong_type("--fix", text, f"NAME=NUMBER under --preset {STUDY}, such as tp1=8")
        values[name.strip().replace("-", "_")] = number
    return values
