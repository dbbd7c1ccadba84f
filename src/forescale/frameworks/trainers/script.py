"""Python scripts that set up a training with calls: unsloth, TRL, Transformers, Accelerate and Lightning.

The script is followed as syntax (`frameworks/python`) and never run. `calls.json` has the calls that count.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError
from forescale.files import read_text
from forescale.frameworks.detect import Signed, detect
from forescale.frameworks.megatron.model import MICRO_BATCH
from forescale.frameworks.python.module import World
from forescale.frameworks.python.run import Frame
from forescale.frameworks.python.values import MISSING, Call, Opaque, Stopped
from forescale.frameworks.reading import Options, ParsedFile, packaged
from forescale.frameworks.shell import Devices, devices_of, launch_of
from forescale.frameworks.trainers.accelerated import accelerated
from forescale.frameworks.trainers.arguments import Arguments, Fields
from forescale.frameworks.trainers.facts import BATCH, without_facts
from forescale.frameworks.trainers.loop import is_loop
from forescale.frameworks.trainers.readers import LaunchReader, arguments_of, read_mapping
from forescale.frameworks.trainers.record import is_idle, record_of
from forescale.frameworks.trainers.release import lay_release
from forescale.frameworks.trainers.run import MICRO, STEPS, Start, neighbour_of

FACTS: Final = packaged("trainers", "calls")
OPEN: Final = {MICRO: MICRO_BATCH, STEPS: BATCH}
"""Facts by the arguments that decide them, where only running the script shows their values."""


MAKES: Final = re.compile(r"TrainingArguments$|^(?:\w+\.)*(?:SFT|DPO|KTO|ORPO|CPO|Reward|GRPO|RLOO)Config$")
"""Calls that settle how a Trainer trains."""
USUAL_BATCH: Final = 8
"""Sequences of a device where TrainingArguments are given none."""
NAMED: Final = re.compile(r"""\.from_pretrained\(\s*["']([^"']+)["']""")
"""A model that a method of a class names, which nothing calls."""


RECOMPUTES: Final = re.compile(r"^\s*(?:\w+\.)*config\.gradient_checkpointing\s*=\s*True", re.MULTILINE)
"""A model's configuration that turns recomputation on."""


class Recorder:
    """Hooks that keep the calls of a script, and answer those whose results are known."""

    package: Final = ""
    closed: Final = frozenset[str]()

    def __init__(self, *, has_bf16: bool = True, given: Mapping[str, Any] | None = None) -> None:
        self.answers = {**FACTS["answers"], **dict.fromkeys(FACTS["bf16"], has_bf16)}
        self.world: World | None = None
        self.calls: list[Call] = []
        self.arguments = Arguments(given or {}, packaged("deepspeed", "trainer")["keys"])

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401
        """Keep a call, not known under a condition that is not; return the arguments that it makes, or its answer."""
        call.known = self.world is None or self.world.doubt is None
        self.calls.append(call)
        before = len(self.arguments.made)
        made = self.arguments.answer(call, owner, self.world)
        self.calls += self.arguments.made[before:]
        return made if made is not MISSING else self.answers.get(call.name.rpartition(".")[2], MISSING)

    def default(self, owner: Call, name: str) -> Any:  # noqa: ANN401, ARG002  (as all hooks)
        """Return the default of a field, which is not known."""
        return MISSING


def follow_script(path: Path, recorder: Recorder, options: Options) -> Frame:
    """Follow a script, so that `recorder` has its calls; what it raises on its data ends one statement alone."""
    recorder.world = World(recorder, Frame, options.folders)
    module = recorder.world.module(path)
    frame = Frame(module, {"__name__": "__main__"})
    for line in module.tree.body:
        with suppress(Stopped):
            frame.body([line])
    return frame


class ScriptReader(Signed):
    """Python scripts that train with unsloth, TRL, Transformers or Lightning."""

    name: Final = "script"
    title: Final = "Python script that trains with unsloth, TRL, Transformers or Lightning"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the calls of the script at `path` say, or the text of a training loop of its own."""
        if detect(read_text(path)) is None and is_loop(path):
            start = Start(launch=None, devices=None, program=path.name)
            parsed = LaunchReader().trained({}, "trainer", path, options, start)
            return replace(parsed, format=self.name)
        return read_script(path, options)


class ScriptLaunchReader(LaunchReader):
    """Commands that start a trainer, or a Python script next to them that sets up its training itself."""

    def started(self, commands: Sequence[Sequence[str]], path: Path, options: Options) -> ParsedFile:
        """Return what the first script that trains says, on the devices that its command starts."""
        for names in commands:
            for at, name in enumerate(names):
                file = neighbour_of(path.parent, name) if name.endswith(".py") else None
                if (
                    file is None
                    or (kind := detect(read_text(file))) is None
                    or kind.name != ScriptReader.name
                ):
                    continue
                launch = launch_of(names[:at])
                devices = devices_of(launch)
                count = options.num_devices or (devices.count if devices else None)
                outer = replace(options, num_devices=count, strict=False)
                accelerate = accelerated(launch, path, outer)
                given = arguments_of(names[at + 1 :])[0]
                return read_script(file, options, launch=accelerate, devices=devices, given=given)
        return super().started(commands, path, options)

    def programmed(
        self,
        file: Path | None,
        given: Mapping[str, Any],
        options: Options,
        launch: ParsedFile | None,
        devices: Devices | None,
    ) -> ParsedFile | None:
        """Return what a program of a person's own makes of its arguments; None if no call in it trains."""
        kind = detect(read_text(file)) if file is not None else None
        if file is None or kind is None or kind.name != ScriptReader.name:
            return None
        try:
            return read_script(file, options, launch=launch, devices=devices, given=given, is_whole=True)
        except ReaderError:
            return None


def read_script(
    path: Path,
    options: Options,
    *,
    launch: ParsedFile | None = None,
    devices: Devices | None = None,
    given: Mapping[str, Any] | None = None,
    is_whole: bool = False,
) -> ParsedFile:
    """Return what the calls of a script say, which `launch` and `devices` start with the arguments `given`.

    Raises
    ------
    ReaderError
        If the script `is_whole` and makes no TrainingArguments.
    """
    recorder = Recorder(has_bf16=options.has_bf16, given=given)
    follow_script(path, recorder, options)
    if is_whole and not any(
        MAKES.search(name) for call in recorder.calls for name in (call.name, *call.kinds)
    ):
        raise ReaderError(path, wording.wrong_format("a script that trains", "it makes no TrainingArguments"))
    content, unread = _content(recorder.calls, recorder.arguments.given)
    content = _with_arguments(content, recorder.arguments)
    unread = {key: text for key, text in unread.items() if key not in recorder.arguments.given}
    if content.get("unsloth") and not options.has_bf16:
        content |= {"bf16": False, "fp16": True}
    if MICRO not in content and MICRO not in unread and any("Parser" in call.name for call in recorder.calls):
        if not given:
            fix = "it takes its arguments from the command line; give the command or script that starts it"
            raise ReaderError(path, wording.wrong_format("a script with its settings", fix))
        content[MICRO] = USUAL_BATCH
    if RECOMPUTES.search(read_text(path)):
        content.setdefault("gradient_checkpointing", True)
    older = lay_release(content, unread, recorder.calls, has_bf16=options.has_bf16)
    devices, program = devices or _devices(content), path.name
    if content.pop("unsloth", False):
        program = ""
    if not program and devices is None and options.num_devices is None:
        devices = Devices(1, ("unsloth, which trains on one device",))
    content |= _distributed(content)
    if "model_name_or_path" not in content and (named := NAMED.search(read_text(path))) is not None:
        content["model_name_or_path"] = named[1]
    if MICRO in unread:
        content[MICRO] = options.over.get("micro_batch_size", 1)
    facts = [OPEN[key]._replace(reason=f"{key} is {unread[key]}") for key in OPEN if key in unread]
    others = [f"{key} is {text}" for key, text in unread.items() if key not in OPEN and not is_idle(key)]
    content.setdefault("gradient_checkpointing", False)
    parsed = read_mapping(
        content, "trainer", path, options, lines={}, launch=launch, devices=devices, program=program
    )
    warnings = [*older, *([f"only running the script shows {'; '.join(others)}"] if others else [])]
    parsed = replace(parsed, format=ScriptReader.name, warnings=(*parsed.warnings, *warnings))
    return without_facts(parsed, facts)


def _content(calls: list[Call], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of calls by the keys of TrainingArguments, and those that only running shows."""
    content, unread, once = dict[str, Any](), dict[str, str](), set[str]()
    for call in calls:
        fields = call.fields
        if isinstance(fields, Fields):
            fields = {name: value for name, value in fields.items() if name in given and is_known(name)}
        for row in FACTS["calls"]:
            names = (call.name, *call.kinds)
            if row["name"] in once or not any(re.fullmatch(row["name"], name) for name in names):
                continue
            once |= {row["name"]} if row.get("first") else set()
            unread |= {} if call.known else {call.name: "called under a condition"}
            content |= row.get("sets", {})
            for name, value in {
                **dict(zip(row.get("args", ()), call.args, strict=False)),
                **fields,
            }.items():
                key = row["keys"].get(name, name if "*" in row["keys"] else None)
                made = isinstance(value, Call) and (value.known or key == "model_name_or_path")
                if key is None or made or value is None:
                    continue
                if isinstance(value, Call):
                    unread[key] = value.name
                elif isinstance(value, Opaque) and not value.text.startswith("torch."):
                    unread[key] = value.text
                else:
                    content[key] = value.text if isinstance(value, Opaque) else value
    if isinstance(named := content.get("model_name_or_path"), str) and named.endswith("-bnb-4bit"):
        content |= {
            "model_name_or_path": re.sub(r"(?:-unsloth)?-bnb-4bit$", "", named),
            "load_in_4bit": True,
        }
    if content.get("gradient_checkpointing") == "unsloth":
        content["gradient_checkpointing"] = "offload"
    if content.pop("full_finetuning", False):
        content |= {"load_in_4bit": False}
    return content, unread


def _with_arguments(content: dict[str, Any], arguments: Arguments) -> dict[str, Any]:
    """Return what calls say with the arguments of a command, and the defaults of the program's own TrainingArguments.

    An argument that the program declares itself means what its calls make of it. Adapters are trained if a call
    makes them, or a switch: ranks that are only declared say nothing.
    """
    keys = record_of("trainer").keys

    def target(name: str) -> str:
        return keys.get(name, name).removeprefix("!")

    made = set(map(target, content))
    given = {
        key: value
        for key, value in arguments.given.items()
        if (key not in arguments.own or target(key) not in made)
        and (is_known(key) or key not in arguments.used)
    }
    content = {key: value for key, value in content.items() if target(key) not in set(map(target, given))}
    if "max_length" not in set(map(target, (*content, *given))) and arguments.length:
        content["max_length"] = arguments.length
    told = set(map(target, (*content, *given)))
    declared = {
        key: value for key, value in arguments.declared.items() if is_known(key) and target(key) not in told
    }
    if not any(value for key, value in {**declared, **content, **given}.items() if target(key) == "use_peft"):
        declared = {k: v for k, v in declared.items() if not target(k).startswith(("lora_", "load_in_"))}
    return {**declared, **content, **given}


def is_known(name: str) -> bool:
    """Return whether TrainingArguments, TRL or programs like them have an argument of this name."""
    return name in record_of("trainer").keys or name in packaged("deepspeed", "trainer")["keys"]


def _devices(content: dict[str, Any]) -> Devices | None:
    """Return the devices of Lightning's Trainer, and take them out of the content."""
    per_node, nodes = content.pop("devices", None), content.pop("num_nodes", 1)
    if isinstance(per_node, list):
        per_node = len(per_node)
    if not isinstance(per_node, int | str) or not str(per_node).isdigit() or not isinstance(nodes, int):
        return None
    return Devices(int(per_node) * nodes, (f"devices={per_node}", f"num_nodes={nodes}"))


def _distributed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of TrainingArguments that the types and the strategy of Accelerate and Lightning stand for."""
    mixed, strategy = str(content.pop("mixed_precision", "")), str(content.pop("strategy", ""))
    kind = FACTS["mixed"].get(mixed)
    whole = {"dtype": "float32"} if content.pop("lightning", False) and kind != "bfloat16" else {}
    return {**({kind: True} if kind else {}), **whole, **FACTS["strategies"].get(strategy, {})}
