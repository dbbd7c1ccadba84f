"""Python scripts that set up a training with calls: unsloth, TRL, Transformers, Accelerate and Lightning.

The script is followed as syntax (`frameworks/python`) and never run. `calls.json` has the calls that count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
from forescale.frameworks.trainers.facts import BATCH, without_facts
from forescale.frameworks.trainers.readers import LaunchReader, accelerated, read_mapping
from forescale.frameworks.trainers.training import MICRO, STEPS, neighbour_of

FACTS: Final = packaged("trainers", "calls")
OPEN: Final = {MICRO: MICRO_BATCH, STEPS: BATCH}
"""Facts by the arguments that decide them, where only running the script shows their values."""


NAMED: Final = re.compile(r"""\.from_pretrained\(\s*["']([^"']+)["']""")
"""A model that a method of a class names, which nothing calls."""


RECOMPUTES: Final = re.compile(r"^\s*(?:\w+\.)*config\.gradient_checkpointing\s*=\s*True", re.MULTILINE)
"""A model's configuration that turns recomputation on."""


class Recorder:
    """Hooks that keep the calls of a script, and answer those whose results are known."""

    package: Final = ""
    closed: Final = frozenset[str]()

    def __init__(self, *, has_bf16: bool = True) -> None:
        self.answers = {**FACTS["answers"], **dict.fromkeys(FACTS["bf16"], has_bf16)}
        self.world: World | None = None
        self.calls: list[Call] = []
        self.defaults: dict[str, Any] = {}
        """Defaults of the arguments that the script declares with argparse."""

    def call(self, call: Call, owner: object) -> Any:  # noqa: ANN401, ARG002  (as all hooks)
        """Keep a call, not known under a condition that is not; return defaults of arguments, and known answers."""
        call.known = self.world is None or self.world.doubt is None
        self.calls.append(call)
        last = call.name.rpartition(".")[2]
        if last == "add_argument" and call.args:
            name = str(call.args[-1]).lstrip("-").replace("-", "_")
            if "default" in call.fields or "action" in call.fields:
                self.defaults[name] = call.fields.get("default", False)
            return None
        if last == "parse_args":
            return Call("Namespace", call.place, fields=dict(self.defaults))
        return self.answers.get(last, MISSING)

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
        """Return what the calls of the script at `path` say."""
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
                return read_script(file, options, launch=accelerated(launch, path, outer), devices=devices)
        return super().started(commands, path, options)


def read_script(
    path: Path, options: Options, *, launch: ParsedFile | None = None, devices: Devices | None = None
) -> ParsedFile:
    """Return what the calls of a script say, which `launch` and `devices` start."""
    recorder = Recorder(has_bf16=options.has_bf16)
    follow_script(path, recorder, options)
    content, unread = _content(recorder.calls)
    if content.get("unsloth") and not options.has_bf16:
        content |= {"bf16": False, "fp16": True}
    if MICRO not in content and MICRO not in unread and any("Parser" in call.name for call in recorder.calls):
        fix = "it takes its arguments from the command line; give the command or script that starts it"
        raise ReaderError(path, wording.wrong_format("a script with its settings", fix))
    devices = devices or _devices(content)
    if content.pop("unsloth", False) and devices is None and options.num_devices is None:
        devices = Devices(1, ("unsloth, which trains on one device",))
    content |= _distributed(content)
    if RECOMPUTES.search(read_text(path)):
        content.setdefault("gradient_checkpointing", True)
    if "model_name_or_path" not in content and (named := NAMED.search(read_text(path))) is not None:
        content["model_name_or_path"] = named[1]
    if MICRO in unread:
        content[MICRO] = options.over.get("micro_batch_size", 1)
    facts = [OPEN[key]._replace(reason=f"{key} is {unread[key]}") for key in OPEN if key in unread]
    others = [f"{key} is {text}" for key, text in unread.items() if key not in OPEN]
    parsed = read_mapping(content, "trainer", path, options, lines={}, launch=launch, devices=devices)
    warnings = [f"only running the script shows {'; '.join(others)}"] if others else []
    parsed = replace(parsed, format=ScriptReader.name, warnings=(*parsed.warnings, *warnings))
    return without_facts(parsed, facts)


def _content(calls: list[Call]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of calls by the keys of TrainingArguments, and those that only running shows."""
    content, unread, once = dict[str, Any](), dict[str, str](), set[str]()
    for call in calls:
        for row in FACTS["calls"]:
            if row["name"] in once or not re.fullmatch(row["name"], call.name):
                continue
            once |= {row["name"]} if row.get("first") else set()
            unread |= {} if call.known else {call.name: "called under a condition"}
            content |= row.get("sets", {})
            for name, value in {
                **dict(zip(row.get("args", ()), call.args, strict=False)),
                **call.fields,
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
