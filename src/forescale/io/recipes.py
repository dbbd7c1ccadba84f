"""Notes on the performance recipe of a framework that fills what a question leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from forescale.catalogue.frameworks import NONE, default_stack, load_framework
from forescale.cost.run_calibration import FRAMEWORK, MASTER, RECIPE
from forescale.inputs import Prepared, prepare
from forescale.io.named import devices_told, framework_given
from forescale.io.sizes import microbatch_note
from forescale.numeric import Numeric
from forescale.question import TO_FIT, Note, Question
from forescale.records import kept_by_value
from forescale.schedule.legality import LEGALITY
from forescale.spec import Cluster, Layout, Model
from forescale.spec.framework import Framework, merged, recipes_of_kind, replayed, searched
from forescale.spec.layout import Recompute
from forescale.spec.phrases import recompute
from forescale.spec.proposal import Constraint, Proposal, violated
from forescale.spec.recipes import active_width, graphs_of, kind_of, settings_of
from forescale.spec.space import Space, default_recompute
from forescale.spec.workload import EXCEPTIONS
from forescale.time.step import step_seconds
from forescale.units import GIB, format_seconds

FOLLOWED = "open settings follow the recipe"
CHOSEN = ("dispatcher", "graphs", "overlap")
"""Settings of recipes that a search chooses where its space has several values of them."""
SAME_WIDTH = 0.1
"""Relative difference of active widths up to which a recipe is of the same model, or one like it."""


class Completed(NamedTuple):
    """A question's tables as a framework trains them."""

    layout: dict[str, Any] | None
    space: Mapping[str, Any]
    workload: dict[str, Any]
    notes: tuple[Note, ...] = ()
    assumed: tuple[str, ...] = ()
    """`Question.assumed`."""


def framework_of(
    values: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    where: str,
    folder: Path | None,
    *,
    usual: bool | str,
) -> tuple[Framework | None, bool]:
    """Return the framework of a plan's sections, and whether it is the one that they name.

    With `usual`, sections that name no framework, no analysis and no software have the usual one of the devices, or
    that of this name.
    """
    base = values.get("strategy") or values.get("space", {}).get("base") or {}
    preset = values.get("preset", "default")
    is_open = values.get("framework") is None and preset == "default" and not model.traces
    if not (usual and is_open) or isinstance(base, Layout) or "software" in base:
        return framework_given(values.get("framework"), where), True
    if isinstance(usual, str):
        return load_framework(usual), False
    facts = {
        "devices": devices_told(values, folder),
        "zero": base.get("zero"),
        "moe": model.is_moe,
        "offload": bool(_on_host(base)),
        "adapters": _trains_adapters(values.get("workload")),
        "cut": any(base.get(name) not in (None, 1) for name in CUTS),
    }
    return default_stack(cluster.device, facts), False


CUTS = ("tp", "cp", "pp", "ep")
"""Degrees that cut a model."""


def _trains_adapters(workload: object) -> bool:
    """Return whether a workload, or the fields of one, trains adapters alone."""
    for name in ("trainable", "lora_rank"):
        workload = workload.get(name) if isinstance(workload, Mapping) else getattr(workload, name, None)
    return bool(workload)


def _on_host(layout: Mapping[str, Any]) -> float:
    """Return the share of the optimizer's states on the host that a layout's fields give."""
    offload = layout.get("offload")
    share = offload.get("optimizer") if isinstance(offload, Mapping) else getattr(offload, "optimizer", 0.0)
    return (
        float(share) if isinstance(share, int | float) else 0.0
    )  # what is no share the layout's reader names


def other_frameworks(questions: Sequence[object]) -> dict[int, str]:
    """Return which questions have another framework than the first with most devices of their kind, and its name.

    The usual framework goes by the number of devices and by how states are held; rows of a comparison are to differ by
    what is compared alone. States on the host go before a number of devices. What is no question is left as it is.
    """
    kinds: dict[str, list[tuple[int, Question]]] = {}
    for at, one in enumerate(questions):
        if isinstance(one, Question) and one.framework is not None:
            kinds.setdefault(one.cluster.device.name, []).append((at, one))
    result: dict[int, str] = {}
    for several in kinds.values():
        most = max((one for _, one in several), key=_states_and_devices)
        label = most.framework.label  # type: ignore[union-attr]
        result |= {at: label for at, one in several if one.framework and one.framework.label != label}
    return result


def alike(question: Question, alone: Question) -> Question:
    """Return the question of a row with the note that it would have another framework if it were asked `alone`."""
    if question.framework is None or alone.framework is None:
        return question
    text = (
        f"{question.framework.label} is used for all that is compared; "
        f"by itself {question.cluster.num_devices} x {question.cluster.device.name} with "
        f"{_held(alone)} would use {alone.framework.label}"
    )
    return replace(question, notes=(Note(topic="compared", text=text), *question.notes))


def _held(question: Question) -> str:
    """Return how a layout shards states, for a note."""
    layout = question.strategy
    return "this layout" if layout is None else f"zero {layout.zero}"


def _states_and_devices(question: Question) -> tuple[bool, int]:
    """Return whether states are on the host, and on how many devices a question is: what the framework goes by."""
    layout = question.strategy
    return layout is not None and layout.offload.optimizer > 0.0, question.cluster.num_devices


def is_usual(question: Question, zero: object) -> bool:
    """Return whether a question whose sharding stage is given as `zero` has the usual framework of its devices."""
    on_host, devices = _states_and_devices(question)
    facts = {
        "devices": devices,
        "zero": zero,
        "moe": question.model.is_moe,
        "offload": on_host,
        "adapters": bool(question.workload.trainable.lora_rank),
        "cut": question.strategy is not None and any(getattr(question.strategy, name) > 1 for name in CUTS),
    }
    return default_stack(question.cluster.device, facts) == question.framework


def completed_by(
    framework: Framework | None,
    layout: dict[str, Any] | None,
    space: Mapping[str, Any],
    workload: dict[str, Any],
    run: tuple[Model, Cluster],
    *,
    named: bool,
    asks: Mapping[str, Any],
) -> Completed:
    """Return a question's tables with what its framework does where they are silent.

    Parameters
    ----------
    run
        The model and the cluster.
    named
        Whether the question names the framework.
    asks
        Sections of the question's plan: a whole layout, a preset and a traced model leave nothing open.
    """
    assumed: tuple[str, ...] = ()
    preset = asks.get("preset", "default")
    silent = {name: value for name, value in workload.items() if name not in ("global_batch_size", "tokens")}
    if isinstance(asks.get("strategy"), Mapping) and preset == "default" and not run[0].traces:
        known = named and framework is not None
        assumed = _assumed(framework, layout or {}, silent, *run, known)
    if framework is None:
        return Completed(layout, space, workload, (), assumed)
    if layout is None and isinstance(space.get("base"), Mapping):
        base, workload = framework.completed(space["base"], workload, *run)
        if "offload" not in space["base"]:  # a recipe's goes with its recompute, which a search chooses
            base.pop("offload", None)
        unnamed = () if named else _recipe_notes(framework, dict(space["base"]), silent, *run, named)
        return Completed(None, {**space, "base": base}, workload, (*_release_notes(framework), *unnamed))
    local = layout or {}
    notes = (*_release_notes(framework), *_recipe_notes(framework, local, silent, *run, named))
    layout, workload = framework.completed(local, workload, *run)
    return Completed(
        layout, space, workload, (*notes, *microbatch_note(local, layout, framework.label)), assumed
    )


def _release_notes(framework: Framework) -> tuple[Note, ...]:
    """Return the note that names the release line whose defaults stand for a release without an entry."""
    if not framework.line:
        return ()
    text = f"the catalogue has no {framework.label}: the defaults and recipes of {framework.line} apply"
    return (Note(topic="framework", text=text),)


@kept_by_value
def _recipe_notes(
    framework: Framework,
    layout: Mapping[str, Any],
    workload: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    named: bool,
) -> tuple[Note, ...]:
    """Return the note that names the recipe, its settings and those that do not apply; none without a recipe.

    Where the question names no framework (`named` is false), the note says so, without a recipe too.

    Parameters
    ----------
    layout, workload
        Fields that the question gives, before the framework completes them.
    """
    recipe = framework.recipe(layout, workload, model, cluster)
    unnamed = "" if named else f"no framework is named (--framework NAME, or {NONE} for neutral defaults): "
    defaults = Note(
        topic="framework", text=f"{unnamed}unspecified settings use the defaults of {framework.label}"
    )
    if recipe is None:
        return (defaults,) if unnamed else ()
    settings, dropped = settings_of(recipe, model, layout)
    compute, given = framework.compute_of(workload), dict(workload.get("precision") or {})
    types = recipe.types(compute)
    wide = {name: types[name] for name in EXCEPTIONS if name in types and name not in given}
    open_settings = {name: value for name, value in settings.items() if name not in layout}
    filled = ", ".join(f"{name} {_short(value)}" for name, value in {**open_settings, **wide}.items())
    if not filled:
        return () if named else (defaults,)
    name = recipe.name(compute)
    text = f"{unnamed}{FOLLOWED} {name} of {framework.label}: {filled}"
    left_out = [name for name in dropped if name.partition(".")[0] not in layout]
    if left_out:
        text += f"; not applicable to this layout: {', '.join(left_out)}"
    return (Note(topic="framework", text=text),)


def notes_of_search(question: Question, space: Space) -> tuple[Note, ...]:
    """Return the notes of a question for a search of a space, whose recipe does not settle what the search chooses."""
    names = [name for name in CHOSEN if len(space.values_of(name)) > 1]
    if not question.model.is_moe:
        names = [name for name in names if name != "dispatcher"]
    if question.framework is None or not names:
        return question.notes
    end = f" of {question.framework.label}"
    notes = []
    for note in question.notes:
        before, found, _ = note.text.partition(f"{end}: ")
        if found and FOLLOWED in before:
            text = f"{before}{end}, except those that the search chooses ({', '.join(names)})"
            notes.append(replace(note, text=text))
        else:
            notes.append(note)
    return tuple(notes)


def as_set_up(question: Question) -> Question:
    """Return a question with what a run of its layout is set up with: recompute to fit, and graphs to run ahead."""
    return graphed_to_run_ahead(recomputed_to_fit(question))


def recomputed_to_fit(question: Question) -> Question:
    """Return a question with the recompute that lets its layout fit, where it names none and does not fit without.

    Its framework has recipes, which say how it is usually run. It is the fastest of what the framework can recompute,
    as a run that took place was set up; of other frameworks a note says which would be enough. If no recompute is
    enough and the type of the master copy is open too, the framework's compact optimizer states are assumed as well.
    Nothing changes if these are not enough.
    """
    framework, layout = question.framework, question.strategy
    is_open = "recompute" in question.assumed and question.preset == "default"
    if layout is None or not is_open or _fits(question, prepare(question)):
        return question
    if framework is None or not framework.recipes:
        return _with_fitting_recompute(question, framework, layout)
    for candidate in (question, _with_compact_states(question)):
        fitting = candidate and _fastest_fitting(candidate, framework, layout)
        if candidate and fitting:
            states = (
                "" if candidate is question else f"master weights in {candidate.workload.precision.master}, "
            )
            text = f"{UNFIT}: {states}{recompute(fitting.recompute)} assumed"
            note = Note(topic="framework", text=text)
            return replace(candidate, strategy=fitting, notes=(*question.notes, note))
    return question


def set_up_alike(questions: Sequence[object]) -> dict[int, Question]:
    """Return questions of one layout whose recompute was assumed, those of a kind of device with the same for all.

    Where it was assumed otherwise for some, as fewer devices hold more states, it is the one with which most of them
    fit, then that of the shortest steps. What is no question is left as it is.
    """
    kinds: dict[str, dict[int, Question]] = {}
    for at, one in enumerate(questions):
        if isinstance(one, Question) and one.strategy is not None and "recompute" in one.assumed:
            kinds.setdefault(one.cluster.device.name, {})[at] = one
    result: dict[int, Question] = {}
    for several in kinds.values():
        policies = {*(one.layout.recompute for one in several.values())}
        if len(policies) > 1:
            result |= _under_the_same(several, policies)
    return result


def _under_the_same(several: Mapping[int, Question], policies: Iterable[Recompute]) -> dict[int, Question]:
    """Return questions under the one of several policies that suits them best; as they are where none is legal."""
    best: tuple[tuple[int, float], dict[int, Question]] | None = None
    for policy in sorted(policies, key=str):
        asked = {at: one.with_layout(_replaying(one, one.layout, policy)) for at, one in several.items()}
        if any(_broken(one, one.layout) for one in asked.values()):
            continue
        ready = [(one, prepare(one)) for one in asked.values()]
        score = (
            -sum(_fits(one, prepared) for one, prepared in ready),
            sum(float(_step_time(prepared)) for _, prepared in ready),
        )
        if best is None or score < best[0]:
            note = Note(
                topic="framework", text=f"{SOME_UNFIT}: {recompute(policy) or 'none'} assumed for all"
            )
            best = score, {at: replace(one, notes=(*_unassumed(one), note)) for at, one in asked.items()}
    return {**several} if best is None else best[1]


SOME_UNFIT = "recompute is not given, and not every layout fits as it is"
"""Why one is assumed for all."""


def _unassumed(question: Question) -> tuple[Note, ...]:
    """Return the notes of a question but for the one on its own recompute."""
    return tuple(note for note in question.notes if not note.text.startswith(UNFIT))


UNFIT = "recompute is not given, and the layout does not fit as it is"
"""Why one is assumed for a layout."""


def _with_fitting_recompute(question: Question, framework: Framework | None, layout: Layout) -> Question:
    """Return a question that does not fit with a note on the fastest recompute with which it does, if there is one."""
    fitting = _fastest_fitting(question, framework, layout, of_some_layers=False)
    if fitting is None:
        return question
    prepared = prepare(question.with_layout(fitting))
    size, step = float(prepared.known.footprint.peak), float(_step_time(prepared))
    text = (
        f"with {recompute(fitting.recompute)} the layout fits: {size / GIB:.1f} GiB, {format_seconds(step)} per step; "
        "--recompute chooses it"
    )
    return replace(question, notes=(Note(topic=TO_FIT, text=text), *question.notes))


WAITING = 0.1
"""Share of a step that graphs spare at least where the recipe of another model is left for them."""


def graphed_to_run_ahead(question: Question) -> Question:
    """Return a question with graphs that its framework's recipes use, where the device would wait for the host.

    That is so where graphs are open, and the recipe is of another model or device, whose layout need not wait, and uses
    none. Nothing changes where graphs spare less than `WAITING` of the step, or are illegal or do not fit.
    """
    framework, layout, assumed = question.framework, question.strategy, question.assumed
    if framework is None or layout is None or layout.graphs != "none" or question.preset != "default":
        return question
    if not {"graphs", RECIPE} <= {*assumed} or not framework.recipes:
        return question
    recipes = recipes_of_kind(framework, question.model, question.cluster)
    used = [kind for kind in graphs_of(recipes, question.model) if kind != "none"]
    several = [one for kind in used if not _broken(question, one := merged(layout, {"graphs": kind}))]
    times = _times_of_fitting(question, several)
    least = (1.0 - WAITING) * _step_time(prepare(question)) if times else 0.0
    best = min(times, key=times.__getitem__, default=layout)
    if best is layout or times[best] > least:
        return question
    text = (
        f"graphs {best.graphs} assumed: without them, as in that recipe, the device would wait for the host"
    )
    return replace(question, strategy=best, notes=(*question.notes, Note(topic="framework", text=text)))


def _fastest_fitting(
    question: Question, framework: Framework | None, layout: Layout, *, of_some_layers: bool = True
) -> Layout | None:
    """Return the fastest legal layout that fits with some recompute, also of some layers alone; None if none does."""
    model = question.model
    counts = range(1, -(-model.num_layers // (layout.pp * layout.vpp)) if of_some_layers else 1)
    partial = (Recompute(granularity="full", num_layers=count) for count in counts)
    space = Space(recompute=(*default_recompute(model), *partial))
    if framework is not None:
        space = replayed(framework, searched(framework, space, limited=framework.limits is not None), model)
    several = (layout, *(_replaying(question, layout, policy) for policy in space.recompute or ()))
    legal = [item for item in several if not _broken(question, item)]
    counted = [item for item in legal if item.recompute.num_layers]
    of_all = [item for item in legal if item not in counted]
    times = _times_of_fitting(question, [*of_all, *_with_fewest_layers(question, counted)])
    return min(times, key=times.__getitem__, default=None)


def _with_fewest_layers(question: Question, layouts: Sequence[Layout]) -> list[Layout]:
    """Return the layout that replays the fewest layers of those that fit; none where none fits.

    The more layers are replayed, the less is kept, and the longer a step takes.
    """
    from bisect import bisect_left

    ascending = sorted(layouts, key=lambda one: one.recompute.num_layers or 0)
    first = bisect_left(ascending, True, key=lambda one: _fits(question, prepare(question.with_layout(one))))
    return ascending[first : first + 1]


def _times_of_fitting(question: Question, layouts: Sequence[Layout]) -> dict[Layout, Any]:
    """Return the step of each layout that fits [s]."""
    ready = [(prepare(question.with_layout(one)), one) for one in layouts]
    return {one: _step_time(prepared) for prepared, one in ready if _fits(question, prepared)}


def _with_compact_states(question: Question) -> Question | None:
    """Return a question with its framework's compact master copy; None where its type is given or there is none."""
    workload, framework = question.workload, question.framework
    master = None if framework is None else framework.compact_master
    if MASTER not in question.assumed or master is None or workload.precision.master != "fp32":
        return None
    precision = replace(workload.precision, master=master)
    return replace(question, workload=replace(workload, precision=precision))


def _fits(question: Question, prepared: Prepared) -> bool:
    return bool(prepared.known.footprint.peak <= question.memory_limit)


def _step_time(prepared: Prepared) -> Numeric:
    return step_seconds(prepared.setting, prepared.inputs, prepared.known.microbatch).total()


def _broken(question: Question, layout: Layout) -> list[Constraint]:
    proposal = Proposal(
        model=question.model, cluster=question.cluster, workload=question.workload, degrees=layout
    )
    return violated(proposal, LEGALITY)


SUITS_ALL = {"graphs": "none", "overlap": {"expert": False}}
"""Values of settings that go with every recompute."""


def _replaying(question: Question, layout: Layout, policy: Recompute) -> Layout:
    """Return a layout under a recompute policy, without open settings that are illegal with it."""
    layout = replace(layout, recompute=policy)
    broken = (rule.choices for rule in _broken(question, layout) if "recompute" in rule.choices)
    excluded = {name for names in broken for name in names if name in question.assumed}
    return merged(layout, {name: value for name, value in SUITS_ALL.items() if name in excluded})


SETTINGS = ("recompute", "graphs", "overlap", "kernels")
"""Settings that change a step time, in any layout."""
SETTINGS_OF = {"dispatcher": "ep", "stage_layers": "pp"}
"""The same where a degree is above 1."""
ASSUMED = (*SETTINGS, *SETTINGS_OF, RECIPE, FRAMEWORK, MASTER)
"""All that a question may leave open; `MASTER` is `precision.master`."""


@kept_by_value
def _assumed(
    framework: Framework | None,
    layout: Mapping[str, Any],
    workload: Mapping[str, Any],
    model: Model,
    cluster: Cluster,
    named: bool,
) -> tuple[str, ...]:
    """Return the settings that a question leaves open, in the names of `Assumptions`.

    Parameters
    ----------
    layout, workload
        Fields that the question gives, before the framework completes them.
    named
        Whether it names the framework.
    """
    where = [name for name, degree in SETTINGS_OF.items() if layout.get(degree, 1) != 1]
    names = [name for name in (*SETTINGS, *where) if name not in layout]
    recipe = None if framework is None else framework.recipe(layout, workload, model, cluster)
    ours = (
        recipe is not None
        and framework is not None
        and not framework.line
        and recipe.kind == kind_of(model)
        and math.isclose(recipe.active_width, active_width(model), rel_tol=SAME_WIDTH)
        and (
            cluster.device.name.startswith(recipe.device)
            or cluster.device.architecture == recipe.architecture
        )
    )
    if names and not ours:
        names.append(RECIPE)
    is_open = framework is not None and "master" not in (workload.get("precision") or {})
    return (*names, *([] if named or not names else [FRAMEWORK]), *([MASTER] if is_open else []))


def _short(value: object) -> str:
    """Return a setting in a few words."""
    if isinstance(value, Mapping):
        return " ".join(f"{name} {_short(part)}" for name, part in value.items())
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return (
            "+".join(map(str, value))
            if all(isinstance(part, str) for part in value)
            else f"of {len(value)} stages"
        )
    return str(value).replace("_", "-")
