"""What a person's own program says of itself: defaults of its arguments, adapters, and what shards its states.

The program is parsed and never run. A default is a literal of `add_argument`, of a field of a class of arguments, or of
a parameter of a function under `call_parse`; those of modules next to it count as well. Calls count as in `calls.json`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec import field
from msgspec.structs import replace

from forescale.errors import MissingFact
from forescale.files import is_file, read_text
from forescale.frameworks.reading import ParsedFile, packaged
from forescale.frameworks.trainers.calls import KEYS, SHARDS
from forescale.frameworks.trainers.facts import CONFIGURATION
from forescale.frameworks.trainers.loop import hold_loop, names_in, weights_of
from forescale.frameworks.trainers.record import OFF, Record
from forescale.frameworks.trainers.run import neighbour_of
from forescale.frameworks.trainers.steps import decided
from forescale.struct import Struct

LARGEST: Final = 2**18
"""Characters of a program that is read."""
MODULES: Final = 12
"""Modules next to a program that are read."""
DECIDED: Final = frozenset(("use_peft", "load_in_4bit", "load_in_8bit", "gradient_checkpointing"))
"""Keys that tell of a call under a condition whether it is made."""
ADAPTERS: Final = ("lora_r", "lora_target_modules")
ENGINE_KEYS: Final = ("deepspeed", "deepspeed_config", "fsdp")
"""Keys that lay a Trainer's states out."""
ENGINES: Final = ("nnscaler", "colossalai", "alpa", "bmtrain")
"""Libraries that lay programs out, and that are not read."""
WRAPS: Final = re.compile(
    r"(?:wrap|setup|set_up|apply|shard|parallelize|prepare|make|create|to)_\w*fsdp\w*|fsdp2?_wrap\w*"
)
"""Functions of people's own that shard states."""
SHARDING: Final = re.compile(
    r"^\S*(?:shard|fsdp)|^[\w-]+ (?:fsdp2?|zero-?[1-3]|hsdp|full_shard)$", re.IGNORECASE
)
"""An argument, by its name or value, that shards states."""
RECOMPUTES: Final = re.compile(r"^\s*(?:\w+\.)*config\.gradient_checkpointing\s*=\s*True", re.MULTILINE)
"""A model's configuration that turns recomputation on."""
FREEZES: Final = re.compile(
    r"\brequires_grad\s*=\s*False\b|\brequires_grad_\(\s*(?:requires_grad\s*=\s*)?False\b"
)
"""Lines that freeze parameters."""
OTHERS: Final = re.compile(r"(?i)ref|teacher|reward|critic|old_|ema|value_")
"""Names of models that are not trained."""
UTILITIES: Final = "utils/ds_utils.py"
STAGES: Final = {0: "no_shard", 2: "shard_grad_op", 3: "full_shard"}
"""Words of `fsdp` by stage."""
STAGE: Final = MissingFact("how its states are sharded", "--zero N", "--zero 3", "strategy.zero")


class Program(Struct, frozen=True):
    """What a program says of its settings."""

    defaults: tuple[tuple[str, Any], ...] = ()
    """Defaults of its arguments, with their names, which several may have."""
    calls: Mapping[str, Any] = field(default_factory=dict)
    """What calls outside of conditions set, by the keys of TrainingArguments."""
    doubtful: Mapping[str, str] = field(default_factory=dict)
    """Calls under conditions that would set something, by the key that decides them."""
    adapters: Mapping[str, Any] = field(default_factory=dict)
    """What a call under a condition sets of adapters."""
    names: frozenset[str] = frozenset()
    """Dotted names of everything it calls."""
    engine: str = ""
    """A library that lays it out, and that is not read."""
    freezes: bool = False
    """Whether it freezes parameters itself."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """What a training loop of its own sets, by the keys of TrainingArguments."""
    loop: str = ""
    """The text of a training loop of its own, and of its modules."""
    warnings: tuple[str, ...] = ()
    """What was not followed for certain."""
    asked: frozenset[str] = frozenset()
    """Names of its own arguments that its calls ask for."""
    stepped: frozenset[str] = frozenset()
    """Keys that its optimizer steps decide (`steps.Steps`)."""
    stage: int | None = None
    """The stage of ZeRO that its calls amount to."""
    is_open: bool = False
    """Whether it counts micro-batches of a step whose number is not known."""

    def taken(self, values: Mapping[str, Any], record: Record) -> set[str]:
        """Return the names of its own arguments that its calls take: switches, and values that they set."""
        made = {*map(str, self.calls.values()), *map(str, self.constants.values())}
        left_out = decided(self.stepped)
        return {
            name
            for name, value in values.items()
            if _key_of(name, record.keys) in left_out
            or (
                name in self.asked
                and not _key_of(name, record.keys)
                and (isinstance(value, bool) or str(value) in made)
            )
        }

    def content(self, values: Mapping[str, Any], record: Record) -> dict[str, Any]:
        """Return what the program adds to the arguments `values` of its command, by name."""
        key_of = partial(_key_of, keys=record.keys)
        given = {key_of(name) for name in values}
        counted = {
            name: value
            for group in self._defaults(values, record)
            if not _differ(group)
            for name, value in group
        }
        whole = {key_of(name): value for name, value in {**counted, **values}.items()}
        adapts = self.calls.get("use_peft") or str(whole.get("use_peft", "")).lower() == "true"
        if not adapts:
            counted = {name: value for name, value in counted.items() if key_of(name) not in ADAPTERS}
        calls = {**(self.adapters if adapts and "lora_r" not in whole else {}), **self.calls}
        added = {name: value for name, value in calls.items() if name not in given or name in self.stepped}
        added |= counted
        told = given | set(map(key_of, added))
        return {
            **{
                name: value
                for name, value in self.constants.items()
                if key_of(name) not in told | decided(self.stepped)
            },
            **added,
        }

    def differing(self, values: Mapping[str, Any], record: Record) -> list[str]:
        """Return the defaults of one key that differ, which `values` of its command do not decide."""
        groups = filter(_differ, self._defaults(values, record))
        return [" and ".join(f"{name} {value}" for name, value in group) for group in groups]

    def _defaults(self, values: Mapping[str, Any], record: Record) -> list[list[tuple[str, Any]]]:
        """Return the defaults that count, those of one key together."""
        told = {_key_of(name, record.keys) for name in values} | self.calls.keys() | decided(self.stepped)
        groups: dict[str, list[tuple[str, Any]]] = {}
        for name, value in self.defaults:
            key = _key_of(name, record.keys)
            lays = key in ENGINE_KEYS and self.loop  # which its calls do
            if key in KEYS and key not in told and not lays and value not in (None, ""):
                groups.setdefault(key, []).append((name, value))
        return list(groups.values())


def _key_of(name: str, keys: Mapping[str, str]) -> str:
    """Return the key of TrainingArguments that a name stands for; "" if it stands for none."""
    return keys.get(name) or (name if name in packaged("deepspeed", "trainer")["keys"] else "")


def _differ(group: Sequence[tuple[str, Any]]) -> bool:
    """Whether defaults of one key have several values."""
    return len({str(value) for _, value in group}) > 1


def read_program(file: Path | None) -> Program:
    """Return what a program says; nothing of one that is not there, too long, or not whole Python."""
    trees = [] if file is None else list(_trees(file))
    nodes = [node for tree in trees for node in ast.walk(tree)]
    named = {_dotted(node.func) for node in nodes if isinstance(node, ast.Call)}
    if is_loop(file):  # a wrapper that another call takes
        named |= {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    text = "\n".join(map(read_text, [] if file is None else modules_of(file)))
    calls = {"gradient_checkpointing": True} if RECOMPUTES.search(text) else {}
    used = names_in(trees)
    defaults = tuple(pair for node in nodes for pair in _defaults(node, used))
    imported = (name.partition(".")[0] for node in nodes for name in _imported(node))
    engine = next((name for name in imported if name in ENGINES), "")
    own = weights_of(trees) if is_loop(file) else {}
    return Program(
        defaults=defaults,
        calls=calls,
        names=frozenset(named),
        engine=engine,
        freezes=freezes(text),
        constants=own,
        loop=text if is_loop(file) else "",
    )


def _trees(file: Path) -> Iterator[ast.Module]:
    """Yield the syntax of a program, and of the modules next to it."""
    yield from (tree for place in modules_of(file) if (tree := _tree(place)) is not None)


def modules_of(file: Path) -> list[Path]:
    """Return a program, and the modules next to it that it and these take something from."""
    places = [file]
    for place in places:
        nodes = ast.walk(tree) if (tree := _tree(place)) is not None else ()
        names = dict.fromkeys(name for node in nodes for name in _taken(node))
        found = (
            _module(folder, name) for name in names for folder in dict.fromkeys((place.parent, file.parent))
        )
        places += [new for new in dict.fromkeys(found) if new is not None and new not in places]
        del places[MODULES + 1 :]
    return places


def is_loop(file: Path | None) -> bool:
    """Return whether a program trains with a loop of its own, which may stand in a module that it takes from."""
    return file is not None and hold_loop(modules_of(file))


def _taken(node: ast.AST) -> list[str]:
    """Return the modules that a statement takes names from: one, or parts of the package that it lies in."""
    if not isinstance(node, ast.ImportFrom):
        return []
    return [node.module] if node.module else [alias.name for alias in node.names]


def _module(folder: Path, name: str) -> Path | None:
    """Return the file of a module or package: in a folder, or, of a name with dots, in one above it."""
    parts = [f"{name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")]
    parts += [f"src/{part}" for part in parts]
    found = (neighbour_of(folder, part) if "." in name else folder / part for part in parts)
    return next((file for file in found if file is not None and is_file(file) and file.stat().st_size), None)


def _tree(file: Path) -> ast.Module | None:
    try:
        text = read_text(file)
        return ast.parse(text) if len(text) <= LARGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imported(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []


def freezes(text: str) -> bool:
    """Whether a program freezes parameters of the model that it trains."""
    lines = text.splitlines()
    for at, line in enumerate(lines):
        near = " ".join(lines[max(0, at - 2) : at + 1])
        if FREEZES.search(line.partition("#")[0]) and not OTHERS.search(near):
            return True
    return False


def _defaults(node: ast.AST, used: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield arguments that a statement declares, with their defaults; of a class, if it is `used`."""
    match node:
        case ast.Call(func=ast.Attribute(attr="add_argument"), args=[*_, ast.Constant(value=str() as name)]):
            yield from (
                (name.lstrip("-").replace("-", "_"), _literal(word.value))
                for word in node.keywords
                if word.arg == "default"
            )
        case ast.ClassDef() if node.name in used and ("Arg" in node.name or "Config" in node.name):
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and item.value:
                    yield item.target.id, _of_field(item.value)
        case ast.FunctionDef() if any("call_parse" in ast.unparse(item) for item in node.decorator_list):
            names = [argument.arg for argument in node.args.args]
            values = node.args.defaults
            yield from zip(names[len(names) - len(values) :], map(_literal, values), strict=True)


def _of_field(value: ast.expr) -> Any:  # noqa: ANN401  (a literal)
    """Return the default of a field of a class: a literal, or that of `field(default=…)`."""
    if isinstance(value, ast.Call):
        return next((_literal(word.value) for word in value.keywords if word.arg == "default"), None)
    return _literal(value)


def _literal(node: ast.expr) -> Any:  # noqa: ANN401  (a literal)
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _dotted(node: ast.expr) -> str:
    """Return a name with its dots; "" of anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    return ""


def made_type(file: Path | None) -> dict[str, Any]:
    """Return the type that a copy of DeepSpeed-Chat computes in, where its utils/ds_utils.py enables one alone."""
    places = () if file is None else (file.parent, *file.parents[1:3])
    table = next((place / UTILITIES for place in places if is_file(place / UTILITIES)), None)
    text = "" if table is None else re.sub(r"#.*", "", read_text(table))
    kinds = re.findall(r"""["'](bf16|fp16)["']\s*:\s*\{\s*["']enabled["']\s*:\s*True""", text)
    return {"dtype": kinds[0]} if len(set(kinds)) == 1 else {}


LITGPT: Final = {
    "pretrain": "litgpt/pretrain.py",
    "finetune": "litgpt/finetune/lora.py",
    "finetune_lora": "litgpt/finetune/lora.py",
    "finetune_full": "litgpt/finetune/full.py",
}
"""Programs of litgpt by the words of its command."""


def with_changes(parsed: ParsedFile, words: Sequence[str], path: Path) -> ParsedFile:
    """Return what a command says, warned of a copy of litgpt next to it that replicates what litgpt shards."""
    known = parsed.num_devices != 1 and words[0].endswith("litgpt") and words[1:]
    name = LITGPT.get(words[1], "") if known else ""
    places = (place / name for place in (path.parent, *path.parents[1:3]) if name)
    called = read_program(next(filter(is_file, places), None)).names
    if "DDPStrategy" not in called or "FSDPStrategy" in called:
        return parsed
    text = f"{name} next to it replicates states (DDPStrategy), which litgpt shards (--zero 0)"
    return replace(parsed, warnings=(*parsed.warnings, text))


def lay_sharding(
    program: Program, values: dict[str, Any], over: Mapping[str, Any], name: str, *, launched: bool
) -> list[MissingFact]:
    """Set what a program that shards its states itself does under --zero; return what its command leaves open.

    What is `launched` by accelerate's configuration, or on one device, leaves nothing open.
    """
    if not name or launched or any(values.get(key) for key in ("deepspeed", "deepspeed_config", "fsdp")):
        return []
    words = (f"{key} {value}" for key, value in values.items() if str(value).lower() not in OFF)
    called = {name.rpartition(".")[2] for name in program.names}
    shards = any(map(SHARDS.fullmatch, called)) or any(map(WRAPS.fullmatch, called))
    if not program.engine and not shards and not any(map(SHARDING.search, words)):
        makes = {"deepspeed.initialize", "deepspeed.init_distributed"} & program.names
        return [CONFIGURATION._replace(reason=f"{name} makes it")] if makes else []
    values["fsdp"] = STAGES.get(over.get("zero", 3), "full_shard")
    decides = f"{name} leaves it to {program.engine}" if program.engine else f"{name} decides it"
    return [STAGE._replace(reason=decides)]
