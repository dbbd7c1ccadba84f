"""Configurations in YAML or JSON that a program loads itself: by hydra, OmegaConf, yaml or json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from posixpath import join
from typing import Any, Final

from forescale.errors import ForescaleError
from forescale.files import is_file, read_text
from forescale.frameworks.python.values import MISSING, Call, Opaque, Table
from forescale.frameworks.trainers.accelerated import content_of
from forescale.frameworks.trainers.run import neighbour_of
from forescale.syntax import deep_merge

LOADS: Final = re.compile(
    r"(?:\w+\.)*(?:yaml\.(?:safe_load|full_load|load)|json\.loads?|OmegaConf\.load|load_yaml)"
)
"""Functions that return the table of a file."""
PATH: Final = re.compile(r"(?:pathlib\.)?(?:Pure)?(?:Posix)?Path")
"""A class whose objects stand for their text."""
OPENS: Final = ("open", "read_text", "read_bytes", "read", "readlines")
"""Functions that return an open file, or its text, which stands for the file."""
EXISTS: Final = ("exists", "is_file", "isfile")
"""Functions that tell whether a file is there."""
VARIABLE: Final = re.compile(r"(?:os\.)?(?:getenv|environ\.get)")
"""Functions that return a variable of the environment, or the default that they are given."""
RANKED: Final = re.compile(r"RANK|WORLD_SIZE|LOCAL_|CUDA_|MASTER_|SLURM_|NNODES|NPROC|NUM_GPUS|N_GPU")
"""Variables that a launcher sets."""
RANKS: Final = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
"""Those that every launcher of PyTorch sets, and that a program started without one does not find."""
SAME: Final = re.compile(
    r"OmegaConf\.(?:to_container|create|to_object)|(?:\w+\.)*(?:DictConfig|ConfigDict|Box|[eE]asyDict|edict|Munch|AttrDict|DotMap)"
)
"""Functions that return the table that they are given."""
INSERTED: Final = re.compile(r"\$\{([^${}]+)\}")
"""Another entry of a configuration, by its path."""
PACKAGE: Final = re.compile(r"^#\s*@package\s+(\S+)", re.MULTILINE)
"""Where the entries of a file of hydra's go."""
REQUIRED: Final = "???"
"""An entry of hydra's that a command must give."""
DEEPEST: Final = 8
"""Files that take each other in, and entries that stand for each other."""


def configured(
    call: Call, owner: object, given: Mapping[str, Any], stored: Mapping[str, Mapping[str, Any]]
) -> Any:  # noqa: ANN401
    """Return the configuration that a call loads, changed as a command has `given` it; MISSING of other calls.

    `stored` has the structured configurations of hydra's ConfigStore by their groups and names.
    """
    folder = folder_of(call)
    if call.name == "hydra.main":
        return _started(call, folder, given, stored)
    if (file := _file_of(call, owner, folder)) is not MISSING:
        return file
    if SAME.fullmatch(call.name) and call.args and isinstance(call.args[0], dict):
        return call.args[0] if isinstance(call.args[0], Table) else Table(call.args[0])
    if call.name == "OmegaConf.from_cli":
        return _tabled(_nested(given), call)
    if call.name == "OmegaConf.update" and isinstance(next(iter(call.args), None), dict):
        return _changed(call)
    if call.name == "OmegaConf.merge" and all(isinstance(item, dict) for item in call.args):
        merged: dict[str, Any] = {}
        for item in call.args:
            merged = deep_merge(merged, item)
        return _tabled(merged, call)
    if not LOADS.fullmatch(call.name) or not call.args:
        return MISSING
    return loaded(call.args[0], folder, call)


def _changed(call: Call) -> None:
    """Change an entry of a configuration by its path with dots; any may be where that is not known."""
    table, path, *more = call.args
    value = more[0] if more else call.fields.get("value")
    *above, last = path.split(".") if isinstance(path, str) else [""]
    for part in above:
        table = table.get(part, {})
    table |= {last: value} if last else dict.fromkeys(table, Opaque("what OmegaConf.update sets", call.place))


def folder_of(call: Call) -> Path:
    """Return the folder of the file that a call stands in."""
    return Path(call.place.rpartition(", line ")[0]).parent


def loaded(value: object, folder: Path, call: Call) -> Any:  # noqa: ANN401
    """Return the table of a text, or of a file by its name or where it is opened; MISSING where that is not there."""
    written = value.args[:1] if isinstance(value, Call) and value.name.startswith("json.dumps") else []
    if written and isinstance(written[0], dict):
        return _tabled(written[0], call)
    name = _name_of(value)
    file = neighbour_of(folder, name) if name else None
    content = None if file is None else _content(file)
    return MISSING if content is None else _tabled(content, call)


def instantiated(value: object, call: Call, calls: list[Call], build: Callable[[Call], Call | None]) -> Any:  # noqa: ANN401
    """Return what hydra makes of a table with `_target_`, which `calls` are told; of others the same.

    `build` returns an object of a class of the program's own.
    """
    if not isinstance(value, dict):
        return value
    inner = {name: instantiated(item, call, calls, build) for name, item in value.items()}
    target = inner.pop("_target_", None)
    if not isinstance(target, str):
        return inner
    fields = {
        name: item for name, item in inner.items() if name not in ("_partial_", "_recursive_", "_convert_")
    }
    made = Call(target, call.place, fields=fields)
    calls.append(made)
    return build(made) or made


def variable(call: Call, values: Mapping[str, str], ranks: Mapping[str, str] | None) -> Any:  # noqa: ANN401
    """Return a variable of the environment: one of `values`, or its default; MISSING of one that a launcher sets.

    `ranks` has the variables of ranks, where these are known.
    """
    name, *usual = [*call.args, *call.fields.values()] if VARIABLE.fullmatch(call.name) else [None]
    if isinstance(name, str) and ranks is not None and name in RANKS:
        return ranks.get(name, usual[0] if usual else None)
    if not isinstance(name, str) or RANKED.search(name):
        return MISSING
    return values.get(name, usual[0] if usual else None)


def _file_of(call: Call, owner: object, folder: Path) -> Any:  # noqa: ANN401
    """Return the path or the open file that a call makes, or whether a file is there; MISSING of other calls."""
    if PATH.fullmatch(call.name) and call.args and all(isinstance(arg, str) for arg in call.args):
        return join(*call.args)
    last = call.name.rpartition(".")[2]
    value = owner if last != call.name and isinstance(owner, str | Call) else next(iter(call.args), None)
    name = _name_of(value)
    if last in OPENS and name:
        return Call("open", call.place, [name])
    is_there = last in EXISTS and isinstance(value, str) and neighbour_of(folder, value) is not None
    return True if is_there else MISSING


def _name_of(value: object) -> str:
    """Return the name of a file that a value stands for; "" if it is not known."""
    value = value.args[0] if isinstance(value, Call) and value.name == "open" and value.args else value
    return value if isinstance(value, str) else ""


def _content(file: Path) -> dict[str, Any] | None:
    """Return the table in a file; None where it holds something else."""
    with suppress(ForescaleError):
        return dict(content_of(file))
    return None


def _started(
    call: Call, folder: Path, given: Mapping[str, Any], stored: Mapping[str, Mapping[str, Any]]
) -> Any:  # noqa: ANN401
    """Return the configuration that hydra starts a program with."""
    words = {**dict(zip(("config_path", "config_name"), call.args, strict=False)), **call.fields}
    words |= {name: given[name] for name in ("config_path", "config_name") if name in given}
    place, name = words.get("config_path") or ".", words.get("config_name")
    if not isinstance(place, str) or not isinstance(name, str):
        return MISSING
    content = _Composer(folder / place, given, stored).composed(name)
    if content is None:
        return MISSING
    return _tabled(deep_merge(content, _nested(given, content)), call)


@dataclass(slots=True)
class _Composer:
    """What hydra composes a configuration of: files of YAML below a folder, and structured configurations."""

    root: Path
    given: Mapping[str, Any]
    stored: Mapping[str, Mapping[str, Any]]

    def composed(self, name: str, left: int = DEEPEST) -> dict[str, Any] | None:
        """Return a configuration with those that its `defaults` name; None if one of them is not there."""
        name = name.removesuffix(".yaml")
        file = self.root / f"{name}.yaml"
        own = _content(file) if left and is_file(file) else None
        if own is None:
            own = dict(self.stored[name]) if left and name in self.stored else None
        if own is None:
            return None
        rows = own.pop("defaults", [])
        result: dict[str, Any] = {}
        for row in [*rows, *(["_self_"] if "_self_" not in rows else [])]:
            if row == "_self_":
                result = deep_merge(result, own)
                continue
            for place, path in _options(row, self.given):
                there = place[1:] if place.startswith("/") else join(*name.split("/")[:-1], place)
                if (inner := self.composed(there, left - 1)) is None:
                    continue  # what it sets is not known
                file = self.root / f"{there.removesuffix('.yaml')}.yaml"
                header = PACKAGE.search(read_text(file)) if is_file(file) else None
                result = deep_merge(result, _under(header[1] if header else path, inner))
        return result


def _options(row: object, given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the configuration that a row of `defaults` names, and the path that its entries go to."""
    for key, value in (row if isinstance(row, dict) else {str(row): ""}).items():
        place, _, package = str(key).rpartition(" ")[2].partition("@")
        group = place.lstrip("/")
        if group.startswith("hydra/") or str(key).startswith("override "):
            continue
        chosen = given.get(group, value)
        if value == "":  # one next to this one
            yield place, package or group.rpartition("/")[0].replace("/", ".") or "_global_"
        elif chosen is not None:
            yield f"{place}/{chosen}", package or group.replace("/", ".")


def _under(path: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return a table under a path with dots."""
    for part in reversed([] if path == "_global_" else path.split(".")):
        content = {part: content}
    return content


def _nested(given: Mapping[str, Any], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return arguments with dots as tables in tables, and others that are entries already."""
    result: dict[str, Any] = {}
    for name, value in given.items():
        is_entry = known is None or (name in known and not isinstance(known[name], dict))
        if "." in name or is_entry:
            result = deep_merge(result, _under(name, {"": value}))
    made: dict[str, Any] = _values(result)
    return made


def _values(table: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return tables whose only entry has no name as that entry."""
    if set(table) == {""}:
        return table[""]
    return {key: _values(item) if isinstance(item, dict) else item for key, item in table.items()}


def _tabled(value: Any, call: Call, root: Mapping[str, Any] | None = None, left: int = DEEPEST) -> Any:  # noqa: ANN401
    """Return a configuration with entries in place of `${…}`; what is not there is not known."""
    root = value if root is None else root
    if isinstance(value, dict):
        return Table({str(key): _tabled(item, call, root, left) for key, item in value.items()})
    if isinstance(value, list):
        return [_tabled(item, call, root, left) for item in value]
    if value == REQUIRED:
        return Opaque("a value that a command must give (???)", call.place)
    if not isinstance(value, str) or "${" not in value:
        return value
    names = INSERTED.findall(value)
    found = [_entry(root, name) for name in names]
    is_whole = bool(names) and value == f"${{{names[0]}}}"
    if not left or not names or MISSING in found or (isinstance(found[0], dict | list) and not is_whole):
        return Opaque(value, call.place)
    made = found[0] if is_whole else INSERTED.sub(lambda item: str(_entry(root, item[1])), value)
    return _tabled(made, call, root, left - 1)


def _entry(root: Mapping[str, Any], name: str) -> Any:  # noqa: ANN401
    """Return the entry of a path with dots; MISSING if it is not there."""
    value: Any = root
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value
