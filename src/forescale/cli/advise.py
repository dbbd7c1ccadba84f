"""`forescale advise`: the playbook's decision process on one's own case; `forescale fit`: what makes a layout fit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from forescale.atomic_write import write_text
from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, Group, option
from forescale.cli.formats import answer_of
from forescale.cli.inputs import limited, read_question, refuse_presets
from forescale.cli.options import Asked, CostOptions, OperationsOptions, Priced
from forescale.cli.output import OutputOptions
from forescale.cli.space import SpaceOptions, spaced
from forescale.errors import ForescaleError, no_effect, not_one_of, required_with
from forescale.files import is_file, place_of, read_bytes, read_text
from forescale.limits import SHOWN

if TYPE_CHECKING:
    from forescale.advise.changes import Change
    from forescale.advise.changing import Fit, Fix
    from forescale.question import Question

Remedies: TypeAlias = Mapping[str, Mapping[str, Any]]


def advise_command(
    *,
    request: Asked,
    max_memory: str | None = option("Peak per device, such as 70GiB.", "SIZE"),
    safe: bool = option("Only layouts that fit by the upper estimate of memory.", default=False),
    exact: bool = option("Say how far the advice is from the exact best.", default=True),
    operated: OperationsOptions,
    cost: CostOptions,
    output: OutputOptions,
) -> None:
    """Find a layout step by step: what fits, then the batch, then throughput, with the numbers of each."""
    from forescale.advise import advise
    from forescale.cli.render.advise import advice_view

    question = read_question(replace(request, cost=cost), operated=operated)
    refuse_presets(question, "advise")
    question = spaced(limited(question, max_memory), SpaceOptions(), sized=True, sets=request.plan.sets)
    result = advise(replace(question, safe=safe or question.safe), exact=exact)
    show(answer_of(result, partial(advice_view, notes=question.notes)), output)


PANEL = "Changes"


class ChangeOptions(Group, frozen=True, kw_only=True):
    """Which changes are tried and shown."""

    max_memory: str | None = option("Peak per device, such as 70GiB.", "SIZE", panel=PANEL)
    keep: list[str] | None = option(
        "What stays as it is, such as micro_batch_size or tp. Repeatable.", "NAME", panel=PANEL
    )
    pairs: bool = option("Make changes also two at a time.", default=True, panel=PANEL)
    top: int = option("Changes to show.", "N", check=Bounded(SHOWN), default=10, panel=PANEL)
    patch: bool = option(
        "Write the framework's file with the first change made to --output.",
        default=False,
        panel=PANEL,
    )
    output_file: Path | None = option("File of the changed copy.", "FILE", flag="--output -o", panel=PANEL)


def fit_command(
    *,
    request: Priced,
    change: ChangeOptions,
    output: OutputOptions,
) -> None:
    """Change a layout so that it fits or runs faster: single changes and pairs, ranked by the seconds they cost."""
    from forescale.advise import fit
    from forescale.cli.render.advise import fit_view
    from forescale.export import is_writable

    question = read_question(request, to_fit=False)
    refuse_presets(question, "fit")
    question = limited(question, change.max_memory)
    keep, remedies = tuple(change.keep or ()), remedies_of(request)
    if remedies:
        text = partial(_text_of, remedies=remedies, question=question)
        result = fit(question, keep=keep, pairs=change.pairs, text_of=text)
    else:
        result = fit(question, keep=keep, pairs=change.pairs, accepts=is_writable)
    if change.patch or change.output_file is not None:
        say(_write_patched(request, result, remedies, change), error=not output.is_text)
    show(answer_of(result, partial(fit_view, most=change.top), question=question), output)


def file_of(request: Asked) -> Path | None:
    """Return the framework's file that is asked about, if there is one: that of MODEL before that of `--config`."""
    from forescale.frameworks.readers import is_bare_model

    files = (None if request.model is None else place_of(request.model), request.plan.config)
    return next(
        (
            file
            for file in files
            if file is not None and is_file(file) and file.suffix != ".toml" and not is_bare_model(file)
        ),
        None,
    )


def remedies_of(request: Asked) -> Remedies:
    """Return the keys of a file by the change of the layout that they make; none if the file's format has none."""
    from forescale.catalogue.models import load_model
    from forescale.frameworks.readers import read_file
    from forescale.frameworks.reading import Options

    file, config = file_of(request), request.plan.config
    if file is None:
        return {}
    options = Options(model_of=load_model, num_devices=request.cluster.devices, strict=False)
    try:
        launch = read_file(config, options) if config is not None and config != file else None
        return read_file(file, replace(options, launch=launch)).remedies
    except ForescaleError:  # such as a plan
        return {}


def _text_of(change: Change, *, remedies: Remedies, question: Question) -> str | None:
    from forescale.frameworks.trainers.patch import edits, text_of

    keys = edits(change, remedies, question.layout, question.workload)
    return None if keys is None else text_of(keys)


def _write_patched(request: Asked, result: Fit, remedies: Remedies, change: ChangeOptions) -> str:
    """Write a copy of the file with the first changes made that it has keys for; return what was written."""
    from forescale.cli.render.words import gib
    from forescale.frameworks.trainers.patch import patched, text_of

    if change.output_file is None or not change.patch:
        raise required_with("--patch and --output FILE", "--patch" if change.patch else "--output")
    file = file_of(request)
    if file is None or not remedies:
        reason = "its keys are not known for this file"
        raise no_effect("--patch", reason, "give a file of a Hugging Face trainer")
    if change.output_file.exists():
        allowed = "a file that does not exist: nothing is changed in place"
        raise not_one_of("--output", str(change.output_file), allowed)
    if not result.fixes:
        raise no_effect("--patch", "no change that was tried helps")
    first, keys = _in_file(result, remedies)
    text = read_text(file)
    if (copy := patched(text, file.suffix, keys)) == text:
        raise no_effect("--patch", "the file does not hold the keys", "give the file that its command names")
    write_text(change.output_file, copy.replace("\n", "\r\n") if b"\r\n" in read_bytes(file) else copy)
    size = gib(first.projection.memory.peak_bytes)
    return f"wrote {change.output_file} with {text_of(keys)}: {first.verdict}, {size} GiB"


def _in_file(result: Fit, remedies: Remedies) -> tuple[Fix, dict[str, Any]]:
    """Return the first of the changes that fit, or else of all, for each of which a file has keys, and these keys."""
    from forescale.frameworks.trainers.patch import edits

    for one in sorted(result.fixes, key=lambda fix: fix.verdict == "OOM"):
        layout, work = one.projection.strategy, result.question.workload
        several = [edits(item, remedies, layout, work) for item in one.changes]
        if None not in several:
            return one, {key: value for keys in several for key, value in (keys or {}).items()}
    raise no_effect("--patch", "the file has keys for none of the changes", "make one by hand")
