"""Write the pages of the reference that follow from the code: `python scripts/api.py`.

docs/api.md from the docstrings of what `import forescale` offers, docs/files.md from the fields of what files hold,
docs/formats.md from the readers and writers there are, and the table of options of a layout in docs/cli.md from the
fields of a layout.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import forescale.api
from forescale.advise.advice import Advice
from forescale.advise.changing import Fit
from forescale.advise.check import Check
from forescale.catalogue.frameworks import load_framework, release_names
from forescale.cli.options import described_options
from forescale.diagnose.diagnosis import Diagnosis
from forescale.export.export import Export
from forescale.formula import TermNode
from forescale.frameworks.readers import READERS
from forescale.frameworks.writers import WRITERS
from forescale.io.measurements import CostSection
from forescale.io.question import SECTIONS
from forescale.io.space import FILE_KEYS
from forescale.memory.timeline import MemoryTimeline
from forescale.schedule.simulation import Step
from forescale.search.compare import Comparison
from forescale.spec import Cluster, Layout, Model, Workload
from forescale.spec.cluster import SiteLink
from forescale.spec.operations import Operations
from forescale.spec.option import Declared, options
from forescale.spec.space import NAMES, SETTING_NAMES, Space
from forescale.spec.workload import Precision
from forescale.sweep import SweepResult
from forescale.whole_run import RunProjection

DOCS = Path(__file__).resolve().parent.parent / "docs"
GENERATED = "This page is written by `python scripts/api.py`."
INTRODUCTION = """# Python

`import forescale as fs` loads nothing until a name is used. Every function takes a `Question`, or what makes one: names
of the catalogue, files, specifications, keywords. A model can also be a dictionary, a configuration of transformers or a
`torch.nn.Module`. Every keyword is a named, typed parameter, which `help()`, completion and type checkers show; `ask` lists the
keywords that all functions of a question have (`**keywords` below). Every result has a headline, which `print` shows with its parts, a table and
a picture in a notebook, `plot()` with `save(file)`, `to_frame()` (pandas or polars) and `to_dict()`, the document that the command
prints with `--json` ([json.md](json.md)), without its `question` (`fs.write_question` writes that). Errors are subclasses of
`ForescaleError` with the fields `code`, `key`, `value`, `allowed`, `fix` and `location`. Importing a package such as
`forescale.search` first leaves `fs.search` the function; its contents come with `from forescale.search import …`.

This page is written from the docstrings by `python scripts/api.py`.
"""
FUNCTIONS = (
    "search",
    "project",
    "memory",
    "explain",
    "compare",
    "run",
    "sweep",
    "pipeline",
    "export",
    "advise",
    "fit",
    "check",
    "diagnose",
    "watch",
    "ask",
    "ask_search",
    "read_question",
    "write_question",
    "load_model",
    "trace",
    "write_trace",
    "load_cluster",
    "load_framework",
    "model_names",
    "cluster_names",
    "framework_names",
    "preset_names",
)
"""In the order in which they are wanted."""


RESULTS: tuple[type, ...] = (
    Advice,
    Check,
    Comparison,
    Diagnosis,
    Export,
    Fit,
    MemoryTimeline,
    RunProjection,
    Step,
    SweepResult,
    TermNode,
)
"""What functions return that programs do not make themselves."""


def api() -> str:
    """Return the page of what `import forescale` offers."""
    exported = [getattr(forescale, name) for name in forescale.__all__]
    classes = sorted({*RESULTS, *filter(inspect.isclass, exported)}, key=lambda kind: kind.__name__)
    parts = [INTRODUCTION, "## Functions\n", *map(_function, FUNCTIONS), "## Values\n", *map(_value, classes)]
    return "\n".join(parts)


def _function(name: str) -> str:
    function = getattr(forescale, name)
    shown = inspect.signature(inspect.unwrap(function))
    local = inspect.signature(getattr(forescale.api, name, function)).parameters
    if "seq_len" in shown.parameters and name not in (
        "ask",
        "trace",
    ):  # those of all questions are listed once
        kept = [item for item in shown.parameters.values() if item.kind is not item.KEYWORD_ONLY]
        kept += [item for key, item in shown.parameters.items() if key in local and item not in kept]
        others = inspect.Parameter("keywords", inspect.Parameter.VAR_KEYWORD)
        shown = shown.replace(parameters=[*kept, others])
    plain = ", ".join(_parameter(parameter) for parameter in shown.parameters.values())
    if any(parameter.kind is parameter.KEYWORD_ONLY for parameter in shown.parameters.values()):
        first = next(
            parameter for parameter in shown.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY
        )
        plain = plain.replace(_parameter(first), f"*, {_parameter(first)}", 1)
    return f"### `{name}({plain})`\n\n{_text(function)}\n"


def _parameter(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    return (
        parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"
    )


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring under each field of a dataclass, or of a base, that has one."""
    base = kind.__base__
    texts = {} if base is None or not is_dataclass(base) else field_docs(base)
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    for statement, following in zip(body.body, body.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts


def _value(kind: type) -> str:
    name = kind.__name__
    lines = [f"### `{name}`\n", _text(kind), ""]
    if kind in _within(ROOTS):
        lines += [f"Fields: the keys of [{name}](files.md#{name.lower()}).", ""]
    elif isinstance(kind, type) and is_dataclass(kind):
        described = field_docs(kind)
        for item in fields(kind):
            explicit = " ".join(described.get(item.name, "").split())
            lines.append(f"- `{item.name}: {item.type}`{f' – {explicit}' if explicit else ''}")
        lines.append("")
    for method, function in vars(kind).items():
        if not method.startswith("_") and (inspect.isfunction(function) or isinstance(function, property)):
            text = (function.__doc__ or "").strip().splitlines()[0]
            lines.append(f"- `.{method}{'' if isinstance(function, property) else '()'}` – {text}")
    return "\n".join(lines).rstrip() + "\n"


def _text(documented: object) -> str:
    """Return a docstring with its sections as headings of lists."""
    text = inspect.getdoc(documented) or ""
    lines: list[str] = []
    value = text.splitlines()
    for place, line in enumerate(value):
        below = value[place + 1] if place + 1 < len(value) else ""
        if set(line) == {"-"}:
            continue
        if line.startswith(">>> "):
            line = f"{' ' * 6}{line[4:]}"  # noqa: PLW2901  (a block of code; which loses two spaces)
        lines.append(f"**{line}**\n" if below and set(below) == {"-"} else line)
    return "\n".join(_listed(lines))


def _listed(lines: list[str]) -> list[str]:
    """Return entries of sections, which are followed by indented lines, as items of a list."""
    names: list[str] = []
    for place, line in enumerate(lines):
        below = lines[place + 1] if place + 1 < len(lines) else ""
        if line and not line.startswith((" ", "*")) and below.startswith("    "):
            names.append(f"- `{line}`:")
        else:
            names.append(line.replace("    ", "  ", 1) if line.startswith("    ") else line)
    return names


FILES = f"""# Files of a question

TOML; a plan may also be YAML, a cluster JSON or YAML, and the question itself may stand in one of a framework's own files
([formats](formats.md)). Quantities may be written with units (`"80 GiB"`, `"450 GB/s"`, `"15T"`), bare numbers are SI units. Unknown keys
are refused with the nearest there is. {GENERATED}

## Plan files

`--plan FILE`, or FILE in the place of MODEL: the whole question ([example](../examples/plan.toml)).
"""
PLAN = {
    "model": "name of the catalogue, a `config.json`, a framework's file, or a table of [Model](#model), over `base` if it has one",
    "cluster": "name of the catalogue, a cluster file, or a table of [Cluster](#cluster), over `base` if it has one",
    "hardware_config": "Primus' hardware configuration (YAML), over node and network of the cluster",
    "devices": "how many; or `nodes`",
    "nodes": "how many, instead of `devices`",
    "sites": "table of [SiteLink](#sitelink): sites that the devices are spread over",
    "framework": "what trains, NAME or NAME@RELEASE: it fills in what the file leaves open",
    "preset": "whose account of memory and time; `default` is ours",
    "preset_options": "options of the preset: `tensor_parallel`, `without_quirks`, `fix` ([presets](presets.md))",
    "strategy": "table of [Layout](#layout): the layout; a search needs none",
    "workload": "table of [Workload](#workload): lengths, batch, tokens",
    "precision": "table of [Precision](#precision): types",
    "operations": "table of [Operations](#operations): how the run of `workload.tokens` is operated",
    "phase": "tables of `forescale run`: phases in words of strategy and workload ([the whole run](run.md#phases))",
    "cost": "table of [CostSection](#costsection): what prices kernels and messages",
    "space": "table of [Space](#space): what a search may choose",
    "objective": "what a search ranks by: step_time or peak_memory",
    "max_memory": 'bytes of a device that a search may fill, such as `"70 GiB"`',
    "safe": "whether the upper estimate of memory must fit, too",
    "assumed": "settings that were left open when the question was asked, which widen the interval of the step time; written by `--json`",
}
SPACES = """## Space files

`--space FILE` of `search` and `report` ([example](../examples/space.toml)).

| key | meaning |
|---|---|
| `for` | a framework: restricted to options that it supports |
| `overlap` | communication beside compute, by names of [Overlap](#overlap) |
| `[fix]` | dimensions with the values that they may have, instead of the usual ones |
| `[allow]` | dimensions with values beside the usual ones |
"""
CLUSTERS = """## Cluster files

`--cluster FILE`, in TOML, JSON or YAML ([example](../examples/cluster.toml)): the fields of [Cluster](#cluster), over those of
`base`, a name of the catalogue, if it has that key; tiers inside a node then follow `devices_per_node`. `device` is a name, a device
file, or a table of [Device](#device). A device file ([example](../examples/device.toml)) has the fields of that table and can also
be given as `--cluster FILE`; it needs only `matrix_flops`, `hbm_bytes` and `hbm_bandwidth`
([guide](guides/machine.md)). A name of the catalogue without `tiers` brings the node and the network of that device, and
everyday words change them; bandwidths are those of one device and one direction:

```yaml
device: h100
gpus_per_node: 4
nodes: 8
nvlink: 450 GB/s
infiniband: 200 Gbit/s
```
"""
SWEEPS = """## Sweep files

`forescale sweep FILE` takes a plan with grids, cases and pictures: [sweeps](sweeps.md).
"""
ROOTS = (Layout, Workload, Precision, Operations, CostSection, Space, Model, Cluster, SiteLink)


def files() -> str:
    """Return the page of plan, space, cluster and sweep files."""
    assert set(PLAN) == set(SECTIONS)
    assert set(FILE_KEYS) == {"for", "fix", "allow", "overlap"}
    plan = ["| key | meaning |", "|---|---|", *(f"| `{name}` | {PLAN[name]} |" for name in SECTIONS), ""]
    names = ", ".join(f"`{name}`" for name in (*NAMES, *SETTING_NAMES))
    spaces = [SPACES, f"Dimensions, whose values are words as of `--fix` and `--allow`: {names}.\n"]
    tables = [_table(kind) for kind in _within(ROOTS)]
    return "\n".join([FILES, *plan, *spaces, CLUSTERS, SWEEPS, "## Tables\n", *tables])


def _within(kinds: tuple[type, ...]) -> list[type]:
    """Return dataclasses with those that their fields hold, each once."""
    result: list[type] = []
    waiting = [*kinds]
    while waiting:
        kind = waiting.pop(0)
        if kind in result or kind.__name__ == "Constraint":
            continue
        result.append(kind)
        waiting[:0] = [part for hint in get_type_hints(kind).values() for part in _dataclasses(hint)]
    return result


def _dataclasses(hint: Any) -> Iterator[type]:  # noqa: ANN401 (an annotation)
    if is_dataclass(hint):
        yield hint  # type: ignore[misc]
    for part in get_args(hint):
        yield from _dataclasses(part)


def _table(kind: type) -> str:
    """Return the keys of a table: values, default, meaning."""
    hints, described = get_type_hints(kind, include_extras=True), field_docs(kind)
    lines = [
        f"### {kind.__name__}\n",
        (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "),
        "",
    ]
    lines += ["| key | values | default | meaning |", "|---|---|---|---|"]
    for item in fields(kind):
        if not item.init or item.name == "rules":
            continue
        explicit = " ".join((described.get(item.name) or _helped(item.name)).split()).replace("|", "\\|")
        lines.append(f"| `{item.name}` | {_values(hints[item.name])} | {_default(item)} | {explicit} |")
    return "\n".join(lines) + "\n"


def _helped(name: str) -> str:
    """Return what the option of that name says of itself."""
    helps = {name: str(item.settings["help"]) for name, _, item, _ in described_options(Workload)}
    return helps.get(name, "")


def _values(hint: Any) -> str:  # noqa: ANN401 (an annotation)
    """Return in words what a key takes."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _values(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_values(part) for part in parts if part is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin is tuple:
        return f"list of: {_values(parts[0])}" if parts[-1] is ... else "list"
    if is_dataclass(hint):
        name = getattr(hint, "__name__", "")
        return f"table [{name}](#{name.lower()})"
    overrides = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return overrides.get(hint, "table")


def _default(item: Field[Any]) -> str:
    if item.default is MISSING and item.default_factory is MISSING:
        return "needed"
    if item.default is MISSING or item.default is None or is_dataclass(item.default):
        return ""
    value = item.default
    if isinstance(value, tuple):
        return ", ".join(f"`{part}`" for part in value if isinstance(part, str | int | float)) or ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


FORMATS = f"""# Formats read and written

{GENERATED}

## Read

In the place of MODEL, as `model` of a plan, or beside MODEL with `--config`; the format is told by the content.
[Frameworks](cli.md#frameworks) says what of each counts.
"""
WRITTEN = """## Written

By `export --to NAME[@RELEASE]` and `search … --to NAME --output FILE`, which round-trip exactly; settings that a format cannot express are listed in its
head ([export](cli.md#export)).
"""
OTHERS = """## Other files

| what | read | written |
|---|---|---|
| questions | [plan, cluster and space files](files.md), [documents](json.md) of `--json` | plan files (`fs.write_question`), documents |
| measured runs | [tables](runs.md) (CSV) | [calibrations](json.md#forescalecalibrations1) |
| kernels and messages | [bench artifacts](json.md#forescalebench1), traces of torch.profiler, kernel tables (CSV), output of nccl-tests and rccl-tests | bench artifacts |
| memory | snapshots of PyTorch's allocator | [timelines](memory.md#over-one-step) for Perfetto and pytorch.org/memory_viz |
| pipeline schedules | torch's CSV, Primus' dumps, folders of a run ([running a schedule](runtime.md)) | terminal, SVG, HTML, Perfetto, CSV ([schedules](schedules.md)) |
| rankings, sweeps | | CSV, Parquet, Markdown, HTML, Vega-Lite ([sweeps](sweeps.md)) |
"""


def formats() -> str:
    """Return the page of frameworks' files."""
    read = ["| format | name |", "|---|---|", *(f"| {item.title} | `{item.name}` |" for item in READERS), ""]
    written = ["| format | names, release lines |", "|---|---|"]
    for writer in WRITERS:
        lines = [f"`{name}`{_releases(name, tuple(writer.endings))}" for name in writer.frameworks]
        written.append(f"| {writer.title} | {', '.join(lines)} |")
    return "\n".join([FORMATS, *read, WRITTEN, *written, "", OTHERS])


def _releases(name: str, starts: tuple[str, ...]) -> str:
    """Return the release lines that are written: those that start as an ending of the writer says."""
    result = [
        release_name
        for release_name in release_names(load_framework(name).name)
        if release_name.startswith(starts or "")
    ]
    return f" ({', '.join(result)})" if len(result) > 1 else ""


def cli() -> str:
    """Return the page of the command line with the table of options of a layout."""
    before, heading, after = (DOCS / "cli.md").read_text(encoding="utf-8").partition("\n## Layout\n")
    rows = [f"| {_flags(item)} | {_meaning(item)} |" for item in options(Layout)]
    table = "\n".join(["| option | meaning |", "|---|---|", *rows])
    rest = after[after.index("\n## ") :]
    return f"{before}{heading}\n{table}\n{rest}"


def _flags(item: Declared) -> str:
    """Return how an option is written, with its values."""
    if item.kind is bool:
        return f"`{item.flag}`/`--no-{item.flag[2:]}`"
    values = "|".join(item.option.choices or map(str, item.values))
    text = (item.option.metavar or values or "N").replace("|", "\\|")
    return f"`{item.flag} {text}`" if len(text) <= LONGEST else f"`{item.flag} NAME`"


def _meaning(item: Declared) -> str:
    """Return the docstring of the field that an option sets."""
    kind: Any = Layout
    for name in item.path[:-1]:
        kind = get_type_hints(kind)[name]
    text = " ".join(field_docs(kind)[item.path[-1]].split()).replace("|", "\\|")
    if "default" in text.lower() or not isinstance(item.default, int | float | str):
        return text
    word = str(item.default).lower() if isinstance(item.default, bool) else item.default
    return f"{text} Default: `{word}`."


LONGEST = 60
"""Characters of values in the table of options; longer lists are on the page of files."""
PAGES = {"api.md": api, "files.md": files, "formats.md": formats, "cli.md": cli}

if __name__ == "__main__":
    for name, written in PAGES.items():
        (DOCS / name).write_text(written(), encoding="utf-8")
