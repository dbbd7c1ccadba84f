"""A question written for a framework, read back, and what came back otherwise.

Nothing is taken on trust: what a writer wrote is read by our own reader, completed as the framework trains, and
compared word by word with what was asked. A word that comes back otherwise could not be said, and costs what the
projection changes by.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import partial, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from msgspec.structs import replace

from forescale.atomic_write import writable, write_text, writing
from forescale.catalogue.frameworks import load_framework
from forescale.catalogue.models import load_model, vocabulary_of
from forescale.cost.run_calibration import FRAMEWORK
from forescale.errors import ForescaleError, SpecError, file_exists, missing, unsupported_by, wrong_format
from forescale.export.text import SLURM, Unsaid, headed, slurm_script, told_beside, words_of
from forescale.files import exists, is_file, is_folder
from forescale.frameworks.readers import read_file
from forescale.frameworks.reading import Options
from forescale.frameworks.writers import has_writer, writer_of
from forescale.frameworks.writing import Files, check_ending
from forescale.io.line import told_words
from forescale.io.merge import merge, partial_question
from forescale.io.question import build_question
from forescale.project import project
from forescale.projection.result import Projection
from forescale.question import Question
from forescale.results import Result
from forescale.spec import Layout, Model
from forescale.spec.framework import RULES, Framework, Words, explicit_fields, merged
from forescale.spec.proposal import Proposal
from forescale.struct import Struct, asdict, attributes
from forescale.units import counted


def place(export: Export, path: Path, *, force: bool = False) -> None:
    """Write an export to `path`, a file if it is one, else a folder: it appears whole or not at all.

    A folder that is there already is filled file by file, and keeps what else it holds.

    Raises
    ------
    SpecError
        If something is there already and `force` is not given.
    ForescaleError
        If it cannot be written.
    """
    check_place(path, force=force)
    framework = export.question.framework
    if len(export.texts) > 1 and path.suffix and not is_folder(path):
        files = f"{len(export.texts)} files are written: {', '.join(export.texts)}"
        allowed = "a folder"
        raise wrong_format(allowed, files, f"give a folder's name, such as {path.with_suffix('')}").at(path)
    if len(export.texts) == 1 and (framework is None or not _is_folder(path, framework)):
        write_text(path, export.texts[export.main])
        return
    with writing(path):
        if is_folder(path):
            _fill(path, export)
            return
        draft = path.with_name(f".{path.name[-60:]}.{os.getpid()}.part")
        try:
            draft.mkdir()
            _fill(draft, export)
            draft.rename(path)
        finally:
            with suppress(OSError):
                shutil.rmtree(draft)


def file_name(path: Path | None, to: str) -> str | None:
    """Return the name of the one file written `to` a framework at `path`; None where that is the writer's own."""
    return None if path is None or _is_folder(path, load_framework(to)) else path.name


def _is_folder(path: Path, framework: Framework) -> bool:
    """Return whether files stand in `path`: it is a folder, or, where some layouts take several, has no ending."""
    return is_folder(path) or (writer_of(framework).several and not (path.suffix or exists(path)))


def check_place(path: Path, *, force: bool, to: str | None = None) -> None:
    """Refuse a place that takes no export, `to` such a framework if it is known: asked before the work, not after it.

    Raises
    ------
    SpecError
        If something is there already and `force` is not given, or it is the name of another kind of file,
        or a folder where one file is written, or the other way round.
    ForescaleError
        If it cannot be written.
    """
    if to is not None:
        _check_kind(path, load_framework(to))
    if os.path.lexists(path) and not force:
        raise file_exists(path, "give another --output, or --force to replace it")
    if not is_folder(path):
        writable(path)


def _check_kind(path: Path, framework: Framework) -> None:
    """Refuse a folder where one file is written for a framework, a file where it is a folder, and a wrong ending."""
    writer = writer_of(framework)
    if is_file(path) and not writer.endings:
        raise wrong_format(
            "a folder", f"several files are written for {framework.name}", "give a folder's name"
        ).at(path)
    for release, ending in writer.endings.items():
        if framework.release.startswith(release) and not _is_folder(path, framework):
            others = {f"{framework.name}@{item}": end for item, end in writer.endings.items() if item}
            check_ending(path.name, ending, framework.label, others)
        elif is_folder(path) and not writer.several:
            fix = f"give a file's name, such as {path / f'run{ending}'}"
            raise wrong_format("a file", f"one file is written for {framework.name}", fix).at(path)


def _fill(folder: Path, export: Export) -> None:
    """Write every file of an export into a folder; what else is there stays."""
    for name, text in export.texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_text(folder / name, text)


Word: TypeAlias = tuple[str, ...]
"""Where a field stands in a specification."""
LAYERS = "layers"
SCHEMA = "forescale.export/1"
APART = ("kernels", "overlap", "precision")
"""Tables whose words mean something one by one; of others, such as recompute, the whole is one word."""
NO_FIGURE = ("name", "source", "left_out", "max_seq_len", "config")
"""Fields of a model that no figure follows from."""
WHOLE = ("rope",)
"""Words of a model that mean something with all of their fields only."""


class Export(Result, Struct, frozen=True, kw_only=True):
    """A configuration for a framework, with what it is projected to do."""

    question: Question
    """What was asked, as the framework completes it."""
    projection: Projection
    read_back: Projection
    """What the files alone are projected to do."""
    unsaid: tuple[Unsaid, ...]
    texts: Mapping[str, str]
    """Text of each file by its path; comments, or a README, say what was projected."""
    main: str
    launch: str
    options: tuple[str, ...] = ()
    """Options of `forescale project` that the files are read with, besides the cluster and its devices."""

    def essentials(self) -> dict[str, Any]:
        """Return what was written and what could not be said."""
        return {"files": tuple(self.texts), "unsaid": tuple(item.word for item in self.unsaid)}

    @property
    def headline(self) -> str:
        """The framework, its files and how many settings it cannot express."""
        assert self.question.framework is not None
        return (
            f"{self.question.framework.label}: {', '.join(self.texts)}; "
            f"{counted(len(self.unsaid), 'setting')} that it cannot express; run with {self.launch}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each word that could not be said."""
        return [
            asdict(item) | {"wanted": words_of(item.wanted), "read": words_of(item.read)}
            for item in self.unsaid
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the `forescale.export/1` document."""
        assert self.question.framework is not None
        return {
            "schema": SCHEMA,
            "framework": self.question.framework.label,
            "files": [{"path": path, "text": text} for path, text in self.texts.items()],
            **attributes(self, "main", "launch"),
            "unsaid": self.rows(),
            **attributes(self, "projection", "read_back"),
        }


def export(
    question: Question, to: str | None = None, *, slurm: bool = False, name: str | None = None
) -> Export:
    """Return the configuration of one layout for a framework, and what it cannot say.

    Parameters
    ----------
    question
        One layout.
    to
        The framework, NAME or NAME@RELEASE; that of the question if it is None.
    slurm
        Whether a script for sbatch stands beside it.
    name
        Name of the file where it is only one; the writer's own if it is None.

    Raises
    ------
    UnknownNameError
        If there is no such framework.
    SpecError
        If nothing is written for it, or it refuses such a layout; the message says which limit.
    """
    framework = question.framework if to is None else load_framework(to)
    if framework is None:
        raise missing("the framework", "give --to NAME: the question names none")
    writer = writer_of(framework)
    request = under(question, framework)
    _check(request, framework, writer.no_vision)
    projection = project(request)  # writers take a layout to be legal
    files = writer.write(request)
    back = read_back(files, request)
    if name is not None and len(files.texts) == 1 and files.comment is not None and not slurm:
        files = files.renamed(name)
    together = projection if back == request else project(back)
    unsaid = tuple(_unsaid(request, back, projection, together))
    _refuse_another_model(request, unsaid)
    texts = {**files.texts, **headed(files, request, projection, unsaid, together)}
    if slurm:
        texts[SLURM] = slurm_script(files, request)
    return Export(
        question=request,
        projection=projection,
        read_back=together,
        unsaid=unsaid,
        texts=texts,
        main=files.main,
        launch=files.command,
        options=tuple(told_beside(files, request)),
    )


def is_writable(question: Question) -> bool:
    """Return whether the framework of a question, if any configuration is written for it, takes the layout."""
    return _refusal(question) is None


def refusal_of(question: Question) -> str:
    """Return why the framework of a question refuses its layout; empty if it takes it.

    A model that is written in no plain layout either is one whose configurations are not written, which says nothing
    of the framework.
    """
    if (error := _refusal(question)) is None:
        return ""
    plain = (Layout(dp_shard=question.cluster.num_devices, zero=stage) for stage in (0, 1, 3))
    return str(error) if any(is_writable(question.with_layout(layout)) for layout in plain) else ""


def _refusal(question: Question) -> SpecError | None:
    framework = question.framework
    if framework is None or not has_writer(framework):
        return None
    writer = writer_of(framework)
    try:
        _check(question, framework, writer.no_vision)
        writer.write(question)
    except SpecError as error:
        return error
    return None


IMPLEMENTATION = ("software", "kernels", "allocator")
"""Fields of a layout that say how a framework computes, not what each device trains."""


def under(question: Question, framework: Framework) -> Question:
    """Return a question as a framework trains it: explicit settings and the ZeRO stage stay, others follow.

    The run of another framework stays the same run: all of its workload, and of its layout all but `IMPLEMENTATION`.
    """
    if question.framework == framework:
        return question
    explicit = told_words(question)
    sections = ("strategy", "workload", "precision")
    values: dict[str, Any] = {name: explicit[name] for name in sections if name in explicit}
    if question.strategy is not None:
        values["strategy"] = {"zero": question.strategy.zero, **values.get("strategy", {})}
    result = completed(question, values, framework)
    if question.framework is None or question.strategy is None or FRAMEWORK in question.assumed:
        return result
    implementation = {name: getattr(result.layout, name) for name in IMPLEMENTATION}
    return replace(result, strategy=replace(question.strategy, **implementation), workload=question.workload)


def completed(
    question: Question, values: Mapping[str, Any], framework: Framework | None, where: str = "the question"
) -> Question:
    """Return a question whose layout and workload are as `values` say, and otherwise as the framework trains."""
    parts = {"model": question.model, "cluster": question.cluster, "framework": framework}
    result = build_question({**values, **parts}, where=where)
    return replace(question, framework=framework, strategy=result.strategy, workload=result.workload)


def _check(question: Question, framework: Framework, no_vision: str) -> None:
    """Refuse a model without text, a traced model, a tower where there is `no_vision`, and what limits exclude."""
    if not question.model.vocab_size:
        value = f"{question.model.name}, which has no vocabulary"
        raise unsupported_by("export", value, "it writes the training of language models")
    if question.model.vision is not None and no_vision:
        fix = "images 0 writes the training of the text alone (--images 0)"
        tower = f"the vision tower of {question.model.name}: {no_vision}"
        raise unsupported_by(framework.name, tower, fix)
    if question.model.traces:
        blocks = f"the blocks of {question.model.name}, which was traced from its own code"
        raise unsupported_by(framework.name, blocks, "start it with its own training script")
    limits = framework.limits
    proposal = Proposal(
        model=question.model, cluster=question.cluster, workload=question.workload, degrees=question.layout
    )
    for name, rule in (limits.rules if limits is not None else {}).items():
        if not RULES[name](proposal):
            raise unsupported_by(framework.name, f"this layout: {name} ({rule})")


def _refuse_another_model(question: Question, unsaid: Sequence[Unsaid]) -> None:
    """Refuse to write a model that is another one where figures follow from the difference."""
    assert question.framework is not None
    local = [
        item
        for item in unsaid
        if item.word.startswith("model.") and (item.step_time_s, item.peak_bytes) != (0, 0)
    ]
    if local:
        message = "; ".join(
            f"{item.word.partition('.')[2]} {words_of(item.wanted)} would be {words_of(item.read)}"
            for item in local
        )
        raise unsupported_by(
            question.framework.name,
            f"a model like {question.model.name}: {message}",
            "its files state another model; other frameworks may state this one: forescale export --help lists them",
        )


def read_back(files: Files, question: Question) -> Question:
    """Return the question that files ask by themselves, on the same cluster and completed by the same framework."""
    options = Options(
        num_devices=question.cluster.num_devices, vocabulary_of=vocabulary_of, model_of=load_model
    )
    with TemporaryDirectory() as folder:
        for name, text in files.texts.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        try:
            readings = [read_file(Path(folder) / name, options) for name in (files.main, *files.beside)]
        except ForescaleError as error:
            raise SpecError(error).worded(str(error).replace(f"{folder}/", "")) from error
    values = merge(*map(partial_question, readings)).values
    model = next((reading.model for reading in readings if reading.model is not None), question.model)
    explicit = {name: getattr(question.workload, name) for name in files.left}
    if (
        question.workload.tokens is None
    ):  # left open: whatever number of steps the file starts with is no answer
        explicit["tokens"] = None
    parts = {
        "strategy": {**values.get("strategy", {}), **files.launched},
        "workload": {**values.get("workload", {}), **explicit},
    }
    return completed(replace(question, model=model), parts, question.framework, where=files.main)


def _unsaid(
    request: Question, result: Question, projection: Projection, together: Projection
) -> Iterator[Unsaid]:
    """Yield each word that came back otherwise and that a figure follows from, and what it alone changes.

    A word that changes nothing alone, or cannot change alone, counts where the others change more with it than without.
    Those of the model and the optimizer all count: with them the training is another one.
    """
    if _figures(together) == _figures(projection):
        for part in ("model", "workload"):
            yield from (item for item, path in _otherwise(request, result, part) if _trains_other(part, path))
        return
    among: list[tuple[Unsaid, str, Word]] = []

    def tied() -> Question:
        question = request
        for _, part, path in among:
            question = _with(question, part, path, getattr(result, part))
        return question

    for part in ("model", "strategy", "workload"):
        requested, read = getattr(request, part), getattr(result, part)
        for unsaid, path in _otherwise(request, result, part):
            alone = _projected(partial(_with, request, part, path, read))
            if alone is not None and _figures(alone) != _figures(projection):
                seconds = alone.step_time_s - projection.step_time_s
                size = alone.memory.peak_bytes - projection.memory.peak_bytes
                yield replace(unsaid, step_time_s=seconds, peak_bytes=size)
                continue
            others = _projected(partial(_with, result, part, path, requested))
            if others is not None and _figures(others) != _figures(together):
                yield replace(unsaid, step_time_s=None, peak_bytes=None)
            elif alone is None and others is None:  # it goes with others only, as replicas do with shards
                among.append((replace(unsaid, step_time_s=None, peak_bytes=None), part, path))
            elif _trains_other(part, path):
                yield unsaid
    if among and _figures(_projected(tied) or together) != _figures(projection):
        yield from (unsaid for unsaid, *_ in among)


def _trains_other(part: str, path: Word) -> bool:
    """Return whether a word changes what is trained, or by which optimizer."""
    return part == "model" or path == ("optimizer",)


def _otherwise(question: Question, result: Question, part: str) -> Iterator[tuple[Unsaid, Word]]:
    """Yield the words of a part that came back otherwise, as if no figure followed from them, and where they stand."""
    for path, one, other in _different(getattr(question, part), getattr(result, part)):
        word = ".".join((part, *path))
        yield Unsaid(word=word, wanted=one, read=other, step_time_s=0.0, peak_bytes=0.0), path


def _figures(projection: Projection) -> dict[str, Any]:
    """Return every number of a projection, without the question that it answers and what is said about it."""
    names = ("model", "cluster", "strategy", "workload", "preset", "notes", "costs")
    return {
        item.name: getattr(projection, item.name) for item in fields(projection) if item.name not in names
    }


def _different(value: Any, read: Any) -> list[tuple[Word, object, object]]:  # noqa: ANN401 (a specification)
    """Return the words that differ, with what each is; of layers each word once, as the first layers have it."""
    result: list[tuple[Word, object, object]] = []
    for name in explicit_fields(value, read):
        one, other = getattr(value, name), getattr(read, name)
        if name in APART:
            result += [
                ((name, explicit_field), getattr(one, explicit_field), getattr(other, explicit_field))
                for explicit_field in explicit_fields(one, other)
            ]
        elif name == LAYERS and len(one) == len(other):
            pairs = dict.fromkeys(zip(one, other, strict=True))
            parts = {path: (a, b) for a, b in pairs for path in _leaves(explicit_fields(a, b))}
            result += [((name, *path), _at(a, path), _at(b, path)) for path, (a, b) in parts.items()]
        elif not (isinstance(value, Model) and name in NO_FIGURE):
            result.append(((name,), one, other))
    return result


def _leaves(parts: Words) -> Iterator[Word]:
    for name, value in parts.items():
        if isinstance(value, Mapping) and name not in WHOLE:
            yield from ((name, *path) for path in _leaves(value))
        else:
            yield (name,)


def _at(spec: Any, path: Word) -> Any:  # noqa: ANN401 (a field of a specification)
    return reduce(lambda value, name: getattr(value, name, None), path, spec)


def _changed(requested: Any, path: Word, read: Any) -> Any:  # noqa: ANN401 (a specification)
    """Return `requested` with one word as `read` has it."""
    if path[0] == LAYERS and len(path) > 1:
        pairs = zip(requested.layers, read.layers, strict=True)
        return replace(requested, layers=tuple(_changed(one, path[1:], other) for one, other in pairs))
    if _at(requested, path[:-1]) is None or _at(read, path[:-1]) is None:
        path = path[:1]
    if not hasattr(_at(requested, path[:-1]), path[-1]):  # a layer of another kind
        return requested
    change: Any = reduce(lambda value, name: {name: value}, reversed(path), _at(read, path))
    return merged(requested, change)


def _with(question: Question, part: str, path: Word, other: Any) -> Question:  # noqa: ANN401 (a specification)
    """Return a question with one word of its model, strategy or workload as `other` has it."""
    return replace(question, **{part: _changed(getattr(question, part), path, other)})


def _projected(question: Callable[[], Question]) -> Projection | None:
    """Return the projection; None where the words do not go together."""
    try:
        return project(question())
    except ForescaleError:
        return None
