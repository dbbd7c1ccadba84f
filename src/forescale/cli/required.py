"""The main parts of a question, and one error for all that neither the command line nor a file gives."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from forescale.errors import MissingError, MissingFact
from forescale.positions import COMMAND_LINE
from forescale.synonyms import EXAMPLES

PARTS: Final[Mapping[str, MissingFact]] = {
    part: MissingFact(what, f"{flag} {value}", f"{flag} {EXAMPLES[part.rpartition('.')[2]]}", part)
    for part, what, flag, value in (
        ("model", "the model", "--model", "NAME|config.json"),
        ("cluster", "the cluster", "--cluster", "NAME"),
        ("devices", "the number of devices", "--devices", "N"),
        ("workload.seq_len", "the sequence length", "--seq-len", "N"),
        ("workload.global_batch_size", "the global batch size", "--global-batch-size", "N"),
    )
}
"""Facts that every question needs, by the key of the question."""
ALONE: Final = "transformers"
"""What usually trains on devices that are used one at a time."""


def require(
    values: Mapping[str, Any],
    folder: Path | None,
    facts: Sequence[MissingFact],
    *,
    file: Path | None,
    laid: bool,
) -> None:
    """Refuse a question without its main parts, in the words of the command line.

    Parameters
    ----------
    values
        The sections of the question.
    folder
        Folder of its cluster's file.
    facts
        Facts that `file` leaves open; those that the command line gives do not count.
    laid
        Whether a layout is given, whose degrees count the devices if no file leaves them open.

    Raises
    ------
    MissingError
        With all that is missing.
    """
    from forescale.io.named import is_uncounted

    missing_facts = {fact.part: fact for fact in facts}
    uncounted = is_uncounted(values, folder)
    explicit = values["workload"]
    workload = explicit if isinstance(explicit, dict) else {"seq_len": 1, "global_batch_size": 1}
    absent = {
        "model": "model" not in values,
        "cluster": "cluster" not in values,
        "devices": uncounted and (not laid or "devices" in missing_facts),
        "workload.seq_len": "seq_len" not in workload and file is not None and not _is_model(file),
        "workload.global_batch_size": "global_batch_size" not in workload,
    }
    usual = {
        **PARTS,
        "workload.global_batch_size": PARTS["workload.global_batch_size"].batch_for(values.get("devices")),
    }
    missing = [missing_facts.get(part, usual[part]) for part, is_absent in absent.items() if is_absent]
    missing += [fact for fact in facts if fact.part not in absent and not _is_set(values, fact.part)]
    if not missing:
        return
    _refuse_unknown_names(values, folder)
    if isinstance(preset := values.get("preset"), str):  # it may be why so little was given
        from forescale.presets import load_preset

        load_preset(preset)
    raise MissingError.of(
        COMMAND_LINE if file is None else file, _for_cluster(missing, values, folder), _command()
    )


def _for_cluster(
    facts: Iterable[MissingFact], values: Mapping[str, Any], folder: Path | None
) -> list[MissingFact]:
    """Return facts whose example is one device where the cluster's devices are usually used alone."""
    from forescale.catalogue.frameworks import default_stack
    from forescale.io.named import cluster_of

    every = [*facts]
    if not isinstance(name := values.get("cluster"), str) or all(fact.part != "devices" for fact in every):
        return every
    stack = default_stack(cluster_of(name, folder=folder).device, {"devices": 8})
    if stack is None or stack.name != ALONE:
        return every
    return [fact._replace(example="--devices 1") if fact.part == "devices" else fact for fact in every]


def _is_model(file: Path) -> bool:
    """Return whether a file describes a model alone, whose longest sequence bounds the default as a name's does."""
    from forescale.frameworks.readers import is_bare_model

    return is_bare_model(file)


def _refuse_unknown_names(values: Mapping[str, Any], folder: Path | None) -> None:
    """Refuse a model or cluster that the catalogue does not have: no example of a command works with it."""
    from forescale.catalogue.clusters import resolve_cluster_name
    from forescale.catalogue.models import resolve_model_name
    from forescale.io.named import file_of

    for part, resolve in (("model", resolve_model_name), ("cluster", resolve_cluster_name)):
        name = values.get(part)
        if isinstance(name, str) and file_of(name, folder, known=False) is None:
            resolve(name)


def _is_set(values: Mapping[str, Any], part: str) -> bool:
    """Return whether a question has the key of a fact."""
    *sections, key = part.split(".")
    for section in sections:
        values = values.get(section) or {}
    return key in values


@contextmanager
def located_facts(file: Path, requested: Mapping[str, Any]) -> Iterator[None]:
    """Complete a reader's error of missing facts with the cluster, if that is missing too, and an example."""
    try:
        yield
    except MissingError as error:
        if not error.facts:
            raise
        cluster = () if "cluster" in requested else (PARTS["cluster"],)
        facts = _for_cluster((*error.facts, *cluster), requested, None)
        raise MissingError.of(file, facts, _command()) from error


def _command() -> str:
    from forescale.cli.reproduce import TYPED

    return shlex.join(["forescale", *TYPED.get()])
