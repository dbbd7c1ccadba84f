"""What a Python script calls, followed as syntax (`frameworks/python`) and never run; `calls.json` has what counts."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from forescale.frameworks.python.calls import Caller
from forescale.frameworks.python.module import Class, World, parsed, source_of
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Accepted, Call, Opaque, Stopped, Table
from forescale.frameworks.reading import Options, packaged
from forescale.frameworks.trainers.accelerated import plain
from forescale.frameworks.trainers.arguments import Arguments, number, table_of
from forescale.frameworks.trainers.calls import DECIDES, FACTS, makes, names_of
from forescale.frameworks.trainers.census import LIBRARIES, doubtful, own_losses, unfollowed, unknown
from forescale.frameworks.trainers.census import shown as shown_sites
from forescale.frameworks.trainers.configured import configured, folder_of, instantiated, variable
from forescale.frameworks.trainers.lengths import follow_data
from forescale.frameworks.trainers.run import neighbour_of
from forescale.frameworks.trainers.steps import Steps, loader_of

TOLD: Final = re.compile(
    r"(?i)model|quant|bits?\b|4bit|8bit|batch|accum|len|lora|dtype|precision|fp16|bf16|checkpointing|optim|stage|shard|fsdp|deepspeed|zero"
)
"""Names of variables of the environment that a projection follows from."""
COMMANDS: Final = re.compile(r"\b(?:command|option)\b")
"""Decorators of click and typer that make a command of a function, or give it an option."""
FIRES: Final = re.compile(r"\b(?:fire\.)?Fire\((\w+)")
"""A function whose parameters are the options of a command."""
OPTIONS: Final = re.compile(r"(?:typer\.)?(?:Option|Argument)")
"""Defaults of typer, which have the value."""
INSTANTIATES: Final = re.compile(r"(?:hydra\.utils\.|hydra\.)?(?:instantiate|call)")
"""Functions of hydra that make what a table names."""

STORES: Final = re.compile(r"(?:\w+\.)*store")
"""A method of hydra's ConfigStore that keeps a structured configuration."""
FIELDS: Final = ("fields", "dataclasses.fields")
"""A function that lists the fields of a dataclass, with their defaults."""
HOLDS: Final = re.compile(r"Arg|Config")
"""Classes of a program's own that hold its settings."""
RANKED: Final = ("get_world_size", "get_rank", "is_initialized", "device_count")
"""Functions that count ranks."""
PREPARES: Final = ("prepare", "setup_dataloaders")
"""Methods of accelerate and Fabric that return what they are given."""
SIGNATURE: Final = re.compile(r"(?:inspect\.)?signature")
"""A function that tells which arguments another one takes."""


class Recorder:
    """Hooks that keep the calls of a script, and answer those whose results are known."""

    package: Final = ""
    closed: Final = frozenset[str]()
    opens_classes: ClassVar[bool] = True
    """Whether methods of classes that can be read are followed."""

    def __init__(
        self,
        *,
        has_bf16: bool = True,
        given: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        words: Sequence[str] = (),
        ranks: Mapping[str, str] | None = None,
    ) -> None:
        self.answers = {**FACTS["answers"], **dict.fromkeys(FACTS["bf16"], has_bf16)}
        self.answers["get_device_capability"] = (8, 0) if has_bf16 else (7, 5)
        self.world: World | None = None
        self.calls: list[Call] = []
        self.variables: Mapping[str, str] = variables or {}
        self.unset: dict[str, None] = {}
        """Variables of the environment that nothing sets and that name what a projection follows from."""
        self.assumed: list[str] = []
        """Defaults that a library gives what the program leaves out."""
        self.stored: dict[str, Mapping[str, Any]] = {}
        """Structured configurations of hydra's, by their groups and names."""
        self.missed: list[str] = []
        """Places that decide a fact and are not followed."""
        self.doubted: list[str] = []
        """Places that do so under a condition that is not known."""
        self.tables: list[Table] = []
        """Configurations that the program loads."""
        self.lengths: list[tuple[str, int]] = []
        """Tokens that functions cut texts into or off at, each with the argument that it is."""
        self.words = words
        self.ranks = ranks
        self.steps = Steps()
        """The optimizer steps of a loop of the program's own."""
        self.arguments = Arguments(given or {}, packaged("deepspeed", "trainer")["keys"], words)

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Keep a call, not known under a condition that is not; return the arguments that it makes, or its answer."""
        call.known = self.world is None or self.world.doubt is None
        self.calls.append(call)
        if self.world is not None:
            self.steps.see(call, owner, self.world)
            self.lengths += follow_data(call, self.world)
            if call.name == "exec":
                self._execute(call, self.world)
        before = len(self.arguments.made)
        made = self.arguments.answer(call, owner, self.world)
        made = self._configured(call, owner) if made is MISSING else made
        made = self._variable(call) if made is MISSING else made
        made = self._dealt(call) if made is MISSING else made
        if OPTIONS.fullmatch(call.name) and (call.args or "default" in call.fields):
            usual = call.args[0] if call.args else call.fields["default"]
            made = usual if usual is not ... else MISSING
        if SIGNATURE.fullmatch(call.name) and isinstance(next(iter(call.args), None), Opaque):
            made = Call(call.name, call.place, fields={"parameters": Accepted()})
        if (
            call.name in FIELDS
            and isinstance(made_of := next(iter(call.args), None), Call)
            and made_of.defaults
        ):
            made = [
                Call("Field", call.place, fields={"name": n, "default": d})
                for n, d in made_of.defaults.items()
            ]
        table = next(iter(call.args), None) if INSTANTIATES.fullmatch(call.name) else None
        if isinstance(table, dict):
            made = instantiated({**table, **call.fields}, call, self.calls, self._built)
        self.calls += self.arguments.made[before:]
        return made if made is not MISSING else self.answers.get(call.name.rpartition(".")[2], MISSING)

    def _configured(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Return the configuration that a call loads; the words of a command are hydra's where it starts a program."""
        if STORES.fullmatch(call.name) and self.world is not None:
            words = {**dict(zip(("name", "node", "group"), call.args, strict=False)), **call.fields}
            name, group = str(words.get("name")), words.get("group")
            table = table_of(words.get("node"), self.world)
            self.stored[f"{group}/{name}" if group else name] = table if isinstance(table, dict) else {}
        made = configured(call, owner, self.arguments.given, self.stored)
        if isinstance(made, Table) and made not in self.tables:
            self.tables.append(made)
        program = self.world.argv[0] if self.world is not None and self.world.argv else ""
        if call.name == "hydra.main" and made is not MISSING and call.place.startswith(f"{program}, "):
            self.arguments.given = {}
        return made

    def _built(self, made: Call) -> Call | None:
        """Return an object of a class of the program's own that hydra makes, whose lines are followed."""
        world = self.world
        main = next((item for item in world.modules.values() if item.is_main), None) if world else None
        module, _, name = made.name.rpartition(".")
        kind = main.bring(module, name, 0, name) if main is not None and module else None
        if world is None or main is None or not isinstance(kind, Class):
            return None
        node = ast.copy_location(ast.Call(ast.Name(name, ast.Load()), [], []), kind.node)
        caller = Caller(world.frame(main, {}, {}), node)
        caller.words, caller.place = made.fields, made.place
        return caller.build(kind)

    def _execute(self, call: Call, world: World) -> None:
        """Follow the lines of a file that the program executes; one that sets names by words of the command does so."""
        opened = next(iter(call.args), None)
        name = opened.args[0] if isinstance(opened, Call) and opened.name == "open" else None
        file = neighbour_of(folder_of(call), name) if isinstance(name, str) else None
        main = next((item for item in world.modules.values() if item.is_main), None)
        if file is None or main is None:
            return
        frame, tree = Frame(main, main.names), parsed(file)
        if not {"sys.argv", "globals()"} <= {source_of(node) for node in ast.walk(tree)}:
            frame.body(tree.body)
            return
        for word in (world.argv or [])[1:]:
            key, equals, value = word.removeprefix("--").partition("=")
            if equals:
                main.names[key] = number(plain(value))
                self.arguments.laid.add(key)
            elif (inner := neighbour_of(folder_of(call), word)) is not None and inner.suffix == ".py":
                frame.body(parsed(inner).body)

    def _variable(self, call: Call) -> Any:  # noqa: ANN401
        """Return a variable of the environment, or its default."""
        value = variable(call, self.variables, self.ranks)
        name = call.args[0] if value is not MISSING and call.args else None
        if isinstance(name, str) and name not in self.variables and TOLD.search(name):
            self.unset[name] = None
        return value

    def _dealt(self, call: Call) -> Any:  # noqa: ANN401
        """Return the ranks that torch counts, a loader, or what a launcher's library is given to lay out."""
        last, ranks = call.name.rpartition(".")[2], self.ranks
        if ranks is not None and last in RANKED:
            size = int(ranks.get("WORLD_SIZE", 1))
            return {"get_rank": 0, "is_initialized": "WORLD_SIZE" in ranks}.get(last, size)
        if call.name == "torch.device" and isinstance(kind := next(iter(call.args), None), str):
            return Call(call.name, call.place, call.args, {"type": kind.partition(":")[0]}, known=False)
        if last in PREPARES and last != call.name and call.args:
            return tuple(call.args) if len(call.args) > 1 else call.args[0]
        return MISSING if self.world is None else loader_of(call, self.world)

    @property
    def settings(self) -> list[Mapping[str, Any]]:
        """The names of the program at its end, and the configurations that it loads or makes."""
        modules = self.world.modules.values() if self.world is not None else ()
        made = [call for call in self.calls if call.kinds and call.known and HOLDS.search(call.name)]
        objects = [{**call.defaults, **call.fields} for call in made]
        objects += [dict(call.fields) for call in self.arguments.made]
        return [*self.tables, *objects, *(module.names for module in modules if module.is_main)]

    def warnings(self, *, must_train: bool = True) -> list[str]:
        """Return the warnings of variables that are not set, and of places that were not followed for certain."""
        kinds = {
            "variables of the environment, taken as not set:": list(self.unset),
            "not followed, may change the figures:": self.missed + unknown(self.calls),
            "under a condition that only running shows, taken as met:": self.doubted,
        }
        texts = [f"{text} {shown_sites(names)}" for text, names in kinds.items() if names]
        if self.world is not None:
            texts += dict.fromkeys(own_losses(self.calls, self.world))
        if any("BaseSettings" in call.kinds for call in self.calls):
            texts.append(
                "settings of pydantic have their defaults, which variables of the environment or .env may change"
            )
        called = {name.rpartition(".")[2] for call in self.calls for name in names_of(call)}
        if (
            must_train
            and not any(map(makes, called))
            and called.isdisjoint(("Accelerator", "Fabric", "backward"))
        ):
            texts.append("no call that is followed trains: adapters, types and recomputation are not known")
        return texts

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401, ARG002  (as all hooks)
        """Return the default of a field, which is not known."""
        return MISSING


def follow_script(path: Path, recorder: Recorder, options: Options) -> Frame:
    """Follow a script, so that `recorder` has its calls; what it raises on its data ends one statement alone.

    Where nothing that is followed trains, as with `fire.Fire(train)`, commands are called with their defaults, or else
    functions that train as they are.
    """
    recorder.world = World(recorder, Frame, options.folders)
    recorder.world.opens_classes = recorder.opens_classes
    recorder.world.outside = LIBRARIES if recorder.opens_classes else ()
    given = recorder.arguments.given.items()
    words = recorder.words or [word for name, value in given for word in (f"--{name}", str(value))]
    recorder.world.argv = [str(path), *words]
    module = recorder.world.module(path)
    module.is_main = module.is_run = True
    module.names["__name__"] = "__main__"
    frame = Frame(module, module.names)
    nodes = list(module.functions.values())
    fires = FIRES.findall(source_of(module.tree))
    commands = [node for node in nodes if any(map(COMMANDS.search, map(source_of, node.decorator_list)))]
    named = {word.replace("-", "_") for word in recorder.arguments.words}
    commands = [node for node in commands if named & _words_of(node)] or commands
    for node in commands:
        _lay_options(node, recorder.arguments)
    for line in module.tree.body:
        with suppress(Stopped):
            frame.body([line])
    for node in nodes:
        if node.name in fires:
            _lay_options(node, recorder.arguments)
    tuning = [node for node in nodes if any(map(DECIDES.search, _called(node)))]
    fired = [node for node in nodes if node.name in fires]
    trains = [node for node in nodes if any(map(makes, _called(node)))]
    for functions in (commands, fired, trains, tuning):
        if any(
            makes(name) or name.endswith(".backward") for call in recorder.calls for name in names_of(call)
        ):
            break
        ran = {call.name for call in recorder.calls if call.known}
        for node in functions:
            if node.name in ran:
                continue
            with suppress(Stopped):
                frame.value(ast.copy_location(ast.Call(ast.Name(node.name, ast.Load()), [], []), node))
    recorder.missed, doubted = unfollowed(recorder.world)
    recorder.doubted = list(dict.fromkeys([*doubted, *doubtful(recorder.calls)]))
    return frame


def _words_of(node: ast.FunctionDef) -> set[str]:
    """Return the words that start a command: its name, or that of its decorator."""
    decorators = (item for item in node.decorator_list if isinstance(item, ast.Call))
    named = [arg.value for item in decorators for arg in item.args[:1] if isinstance(arg, ast.Constant)]
    return {str(name).replace("-", "_") for name in (node.name, *named)}


def _called(node: ast.AST) -> list[str]:
    """Return the dotted names that lines call."""
    return [source_of(inner.func) for inner in ast.walk(node) if isinstance(inner, ast.Call)]


def _lay_options(node: ast.FunctionDef, arguments: Arguments) -> None:
    """Give a command of click, typer or fire its options, as they are given or by default, as arguments by name."""
    named = dict(pair for item in node.decorator_list for pair in _option(item))
    late = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    usual = {arg.arg: value for arg, value in zip(late, node.args.defaults, strict=True)} | named
    given = arguments.given.items()
    words = {name: ast.copy_location(ast.Constant(value), node) for name, value in given}
    arguments.laid |= {arg.arg for arg in node.args.args}
    arguments.own |= arguments.laid
    for arg in node.args.args:
        node.args.kwonlyargs.append(arg)
        node.args.kw_defaults.append(words.get(arg.arg, usual.get(arg.arg)))
    node.args.args, node.args.defaults = [], []


def _option(item: ast.expr) -> list[tuple[str, ast.expr]]:
    """Return the name of an option that a decorator of click declares, with its default."""
    if not isinstance(item, ast.Call) or not COMMANDS.search(source_of(item.func)):
        return []
    names = [arg.value for arg in item.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    name = next((name for name in names if name.startswith("--")), "").lstrip("-").replace("-", "_")
    return [(name, word.value) for word in item.keywords if word.arg == "default" and name]
