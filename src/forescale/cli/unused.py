"""Options that a command takes and that change nothing in what is asked for: each is said in a note."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forescale.cli.options import refuse
from forescale.errors import no_effect
from forescale.io.line import has_effect
from forescale.question import Note
from forescale.spec import Layout
from forescale.spec.option import declared_as
from forescale.spec.space import NAMES
from forescale.spec.workload import Precision
from forescale.struct import asdict

if TYPE_CHECKING:
    from forescale.cli.options import LayoutOptions, OperationsOptions, RunOptions
    from forescale.question import Question
    from forescale.spec import Model
    from forescale.spec.space import Space


def refuse_idle(run: RunOptions, operated: OperationsOptions | None, question: Question) -> None:
    """Refuse options that describe what a question does not have: images without a tower, a run without its tokens."""
    if run.images and question.model.vision is None:
        raise no_effect("--images", f"{question.model.name} has no vision tower to see images")
    if operated is not None and question.workload.tokens is None:
        refuse(operated, "it describes a whole run", "give --tokens, such as 15T")


def framework_notes(question: Question, *, named: bool) -> tuple[Note, ...]:
    """Return what trains, where something names it, and what of the question it cannot run."""
    framework = question.framework
    if framework is None:
        return ()
    texts = [f"unspecified settings use the defaults of {framework.label}"] if named else []
    if violation := question.violation(question.strategy):
        texts.insert(0, violation)
    return tuple(Note(topic="framework", text=text) for text in texts)


def _note(written: str, under: str) -> Note:
    return Note(topic="layout", text=f"{written} changes nothing here: it goes with {under}")


def told_fields(sets: Iterable[str] | None, section: str = "strategy") -> dict[str, str]:
    """Return the fields of a layout, or of another section, that `--set` says, with how it is written."""
    keys = (text.partition("=")[0].strip().split(".") for text in sets or ())
    return {key[1]: f"--set {'.'.join(key)}" for key in keys if key[0] == section and len(key) > 1}


def _filed(plan: Mapping[str, Any], section: str, usual: object) -> dict[str, str]:
    """Return the fields of a section that a plan says, other than what is so without, with how it is written."""
    explicit = plan.get(section)
    values = explicit.items() if isinstance(explicit, Mapping) else ()
    return {
        name: f"{section}.{name} of the plan" for name, value in values if value != getattr(usual, name, None)
    }


def idle_notes(
    written: Mapping[str, str], layout: Layout | Space, model: Model | None = None
) -> tuple[Note, ...]:
    """Return what of a layout, or of a space of `model`, was `written`, by field, and changes nothing."""
    found = ((text, declared_as(Layout, name)) for name, text in written.items())
    fields = [(text, item.option) for text, item in found if item is not None]
    notes = [
        _note(text, option.under.label)
        for text, option in fields
        if option.under is not None and not has_effect(option.under, layout)
    ]
    if model is not None and not model.is_moe:
        notes += [_note(text, "a model with experts") for text, option in fields if option.experts]
    return tuple(notes)


def unused_notes(
    run: RunOptions,
    layout: LayoutOptions | None,
    sets: Iterable[str] | None,
    question: Question,
    plan: Mapping[str, Any],
) -> tuple[Note, ...]:
    """Return what was given on the command line or in a plan and changes nothing, with what it would work under."""
    notes: list[Note] = []
    precision = question.workload.precision
    types = asdict(precision).values()
    if precision.recipe != "none" and not {"fp8", "mxfp8"}.intersection(types):
        message = _filed(plan, "precision", Precision()) | told_fields(sets, "precision")
        written = "--fp8-recipe" if run.fp8_recipe is not None else message.get("recipe")
        notes += [_note(written, "--precision fp8")] if written else []
    if layout is not None and question.strategy is not None:
        values = {name: getattr(layout, name) for name in layout.__struct_fields__}
        parts = {name: name.replace("_", "-") for name, value in values.items() if value is not None}
        raw = {name: f"--{'no-' if values[name] is False else ''}{word}" for name, word in parts.items()}
        filed = _filed(plan, "strategy", Layout())
        notes += idle_notes(filed | told_fields(sets) | raw, question.strategy)
    return tuple(notes)


def hardware_notes(values: dict[str, Any], folder: Path | None) -> tuple[Note, ...]:
    """Return what of a hardware configuration changes nothing here."""
    if not isinstance(values.get("hardware_config"), str):
        return ()
    from forescale.frameworks.primus.hardware import read_hardware_config

    config = read_hardware_config((folder or Path()) / values["hardware_config"])
    if not config.unused:
        return ()
    keys = ", ".join(config.unused)
    text = f"{config.where}: keys of Primus's own model that change nothing here: {keys}"
    return (Note(topic="cluster", text=text),)


def refuse_chosen(sets: Iterable[str] | None) -> None:
    """Raise if `--set` says of a layout what a search chooses."""
    for name, written in told_fields(sets).items():
        if name in NAMES:
            raise no_effect(written, f"{name} is searched", f"fix it with --set 'space.{name}=[…]'")
