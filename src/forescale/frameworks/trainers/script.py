"""Python scripts that set up a training with calls: unsloth, TRL, Transformers, Accelerate and Lightning.

The script is followed as syntax (`frameworks/python`) and never run. `calls.json` has the calls that count.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import MissingFact, ReaderError
from forescale.files import is_file, read_text
from forescale.frameworks.detect import Signed, detect
from forescale.frameworks.megatron.model import MICRO_BATCH
from forescale.frameworks.python.values import Call, Opaque
from forescale.frameworks.reading import Options, ParsedFile, packaged
from forescale.frameworks.shell import Devices, Script
from forescale.frameworks.trainers.accelerated import accelerated, launched
from forescale.frameworks.trainers.arguments import Arguments, Fields
from forescale.frameworks.trainers.calls import (
    FACTS,
    KEYS,
    LOADED,
    MAKES,
    configured_model,
    is_of,
    loaded_from,
    made_elsewhere,
    makes,
    model_name,
    names_of,
    of_trained,
    rows_of,
    sharded_by,
)
from forescale.frameworks.trainers.census import place_of
from forescale.frameworks.trainers.commands import arguments_of, own_arguments, programs_of
from forescale.frameworks.trainers.devices import (
    ALONE,
    RANKS,
    environment_of,
    is_placed,
    placed_by,
    started_devices,
    variables_of,
)
from forescale.frameworks.trainers.facts import (
    BATCH,
    CONFIGURATION,
    decided_by,
    of_one_process,
    without_facts,
)
from forescale.frameworks.trainers.lengths import tokenized
from forescale.frameworks.trainers.loop import STEPS_BACK, adds_up
from forescale.frameworks.trainers.program import (
    ADAPTERS,
    RECOMPUTES,
    STAGE,
    STAGES,
    freezes,
    is_loop,
    lay_sharding,
    modules_of,
    read_program,
)
from forescale.frameworks.trainers.readers import LaunchReader, read_mapping
from forescale.frameworks.trainers.record import is_idle, record_of
from forescale.frameworks.trainers.recorder import Recorder, follow_script
from forescale.frameworks.trainers.release import lay_release, lay_unsloth_defaults, widened_parts
from forescale.frameworks.trainers.run import MICRO, STEPS, Start, found_by_end, in_source
from forescale.frameworks.trainers.steps import without

OPEN: Final = {MICRO: MICRO_BATCH, STEPS: BATCH}
"""Facts by the arguments that decide them, where only running the script shows their values."""

USUAL_BATCH: Final = 8
"""Sequences of a device where TrainingArguments are given none."""
OWN: Final = re.compile(r"lora_|load_in_|use_peft|use_dora|quantization_bit|freeze_|use_bnb")
"""Keys that mean something only to a program that makes adapters or quantised weights of them."""
FROZEN: Final = (
    "it freezes parameters (requires_grad), which is not modelled: all are projected as trained "
    "(--lora-rank trains adapters alone)"
)

LIGHTNING: Final = re.compile(r"lightning\S*\.Trainer$")
"""A call that makes Lightning's Trainer."""
REPLICATES: Final = re.compile(r"(?:|auto|ddp\w*|single_device|None)$")
"""Strategies of Lightning that shard nothing."""


def trains(file: Path, *, itself: bool = False) -> bool:
    """Whether a program trains with these libraries: by what it says `itself`, or by a module that it takes from."""
    kind = detect(read_text(file))
    if kind is not None or itself:
        return kind is not None and kind.name == ScriptReader.name
    others = (detect(read_text(other)) for other in modules_of(file)[1:])
    return any(other is not None and other.name == ScriptReader.name for other in others)


class ScriptReader(Signed):
    """Python scripts that train with unsloth, TRL, Transformers or Lightning."""

    name: Final = "script"
    title: Final = (
        "Python script or Jupyter notebook that trains with unsloth, TRL, Transformers or Lightning"
    )
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the calls of the script at `path` say, or the text of a training loop of its own."""
        if options.arguments:
            command = shlex.join(["python", path.name, *options.arguments])
            return ScriptLaunchReader().read_commands(command, path, replace(options, arguments=None))
        if not trains(path, itself=True) and is_loop(path):
            start = Start(launch=None, devices=None, program=path.name)
            parsed = ScriptLaunchReader().trained({}, "trainer", path, options, start)
            return replace(parsed, format=self.name)
        return read_script(path, options, must_train=not trains(path, itself=True))


class ScriptLaunchReader(LaunchReader):
    """Commands that start a trainer, or a Python script next to them that sets up its training itself."""

    def started(self, shell: Script, path: Path, options: Options) -> ParsedFile:
        """Return what the first script that trains says, on the devices that its command starts."""
        programs = [
            (file, names, at)
            for names in shell.commands
            for name, at in programs_of(names)
            if (file := _named(path, name)) is not None
        ]
        for itself in (True, False):
            for file, names, at in programs:
                if not trains(file, itself=itself):
                    continue
                launch = launched(names[:at], path, options)
                visible = environment_of(shell, names)
                devices = started_devices(shell, launch, path, visible, "trainer")
                count = options.num_devices or (devices.count if devices else None)
                outer = replace(options, num_devices=count, strict=False)
                start = Start(
                    launch=accelerated(launch, path, outer),
                    devices=devices,
                    program=file.name,
                    kinds=tuple(launch.kinds),
                    variables=variables_of(shell),
                    words=tuple(names[at + 1 :]),
                )
                values, files = arguments_of(names[at + 1 :])
                given = own_arguments(file, names[at + 1 :], values, next(iter(files), "")) or values
                return read_script(file, options, start, given=given, must_train=not itself)
        return super().started(shell, path, options)

    def programmed(
        self,
        file: Path | None,
        given: Mapping[str, Any],
        options: Options,
        start: Start,
    ) -> ParsedFile | None:
        """Return what a program of a person's own makes of its arguments; None if no call in it trains."""
        if file is None or not trains(file):
            return None
        try:
            return read_script(file, options, start, given=given, is_whole=True)
        except ReaderError:
            return None


def _named(path: Path, name: str) -> Path | None:
    """Return a program by the name that a script has for it, or, in a folder that is not known, next to the script."""
    return (found_by_end(path.parent, name) or in_source(path.parent, name)) or (
        next(filter(is_file, [path.parent / Path(name).name]), None) if name.startswith("$") else None
    )


def read_script(
    path: Path,
    options: Options,
    start: Start | None = None,
    *,
    given: Mapping[str, Any] | None = None,
    is_whole: bool = False,
    must_train: bool = False,
) -> ParsedFile:
    """Return what the calls of a script say, which `start` starts with the arguments `given`.

    Raises
    ------
    ReaderError
        If the script `is_whole`, or `must_train`, and makes no TrainingArguments.
    """
    start = start or Start(launch=None, devices=None, program=path.name)
    devices = start.devices
    recorder = _followed(path, options, start, given)
    makes_arguments, text = _makes_arguments(recorder.calls), _text_of(recorder)
    if (is_whole or (must_train and not STEPS_BACK.search(text))) and not makes_arguments:
        raise ReaderError(path, wording.wrong_format("a script that trains", "it makes no TrainingArguments"))
    steps = {} if makes_arguments else recorder.steps.content
    content, unread = _settings(path, recorder, options, steps)
    dealt = _lay_prepared(content, recorder.calls)
    devices = None if dealt == ALONE and not start.kinds and devices and devices.count > 1 else devices
    recorder.assumed[:0] = lay_release(content, unread, recorder.calls, has_bf16=options.has_bf16)
    if "max_length" not in map(target_of, (*content, *unread)):
        content |= tokenized(recorder.calls, recorder.lengths)
    devices = devices or _devices(content, dealt, start)
    program = "" if content.pop("unsloth", False) else path.name
    if not program and options.num_devices is None:
        devices = devices or Devices(1, ("unsloth, which trains on one device",))
    content |= _distributed(content, unread)
    start = replace(start, devices=devices)
    decides = not (options.launch or is_whole or start.leaves_nothing_to_shard(options.num_devices))
    kinds = () if makes_arguments else start.kinds  # a Trainer that is given no configuration shards nothing
    sharding = _open_sharding(path, recorder.calls, content, unread, options, kinds) if decides else []
    if "model_name_or_path" not in {**content, **unread}:
        content |= configured_model(recorder.calls, read_text(path))
    content |= {MICRO: options.over.get("micro_batch_size", 1)} if MICRO in unread else {}
    facts = sharding + [OPEN[key]._replace(reason=f"{key} is {unread[key]}") for key in OPEN if key in unread]
    is_open = recorder.steps.is_open or adds_up(text, content, steps)
    if is_open and not makes_arguments:
        facts += decided_by(path.name, options.num_devices)[1:]
    content |= (
        {"gradient_checkpointing": False} if "gradient_checkpointing" not in map(target_of, content) else {}
    )
    parsed = read_mapping(
        content, "trainer", path, options, lines={}, launch=start.launch, devices=devices, program=program
    )
    warnings = (*parsed.warnings, *_warnings(recorder, content, unread))
    parsed = replace(parsed, format=ScriptReader.name, warnings=warnings)
    is_alone = start.launch is None and (devices is None or devices.count == 1)
    why = dealt if is_alone and dealt == ALONE else ""
    return without_facts(of_one_process(parsed, path, options.num_devices, why), facts)


def _makes_arguments(calls: Sequence[Call]) -> bool:
    """Whether calls make the arguments of a Trainer, or one of Lightning's."""
    names = (name for call in calls for name in names_of(call))
    return any(MAKES.search(name) or LIGHTNING.search(name) for name in names)


def _followed(path: Path, options: Options, start: Start, given: Mapping[str, Any] | None) -> Recorder:
    """Return what following a script records, with the model that is trained as the one that it loads."""
    recorder = Recorder(
        has_bf16=options.has_bf16,
        given=given,
        variables=start.variables,
        words=start.words,
        ranks=start.ranks(options.num_devices),
    )
    follow_script(path, recorder, options)
    recorder.calls, passed = of_trained(recorder.calls)
    recorder.assumed += passed
    return recorder


def _warnings(recorder: Recorder, content: Mapping[str, Any], unread: Mapping[str, str]) -> Iterator[str]:
    """Yield the warnings of what was not followed for certain, and of what only running the script shows."""
    yield from made_elsewhere(recorder.calls)
    if freezes(_text_of(recorder)) and not any(content.get(key) for key in ("use_peft", "lora_r")):
        yield FROZEN
    yield from recorder.assumed
    yield from sharded_by(recorder.calls)[1]
    yield from recorder.warnings()
    yield from _several(recorder.calls)
    yield from _unused(recorder.arguments, content)
    if others := [f"{key} is {text}" for key, text in unread.items() if key not in OPEN and not is_idle(key)]:
        yield f"only running the script shows {'; '.join(others)}"


def _settings(
    path: Path, recorder: Recorder, options: Options, steps: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return what calls, arguments and `steps` set, by the keys of TrainingArguments, and what only running shows.

    Raises
    ------
    ReaderError
        If the script takes its settings from a command that is not there.
    """
    given = recorder.arguments.given
    content, unread = _content(recorder.calls, given)
    unread |= _lay_unsloth(content, recorder.calls)
    recorder.assumed += lay_unsloth_defaults(content, unread, recorder.calls)
    text = "\n".join(map(read_text, modules_of(path)))
    content = _with_arguments(content, recorder.arguments, text)
    unread = {key: shown for key, shown in unread.items() if key not in given}
    if content.get("unsloth") and not options.has_bf16:
        content |= {"bf16": False, "fp16": True}
    lacks = not given and any(map(CONFIGURES.search, recorder.arguments.required))
    takes = MICRO not in content and MICRO not in unread
    if lacks or (takes and any("Parser" in call.name for call in recorder.calls)):
        if not given:
            fix = "it takes its arguments from the command line; give the command or script that starts it"
            raise ReaderError(path, wording.wrong_format("a script with its settings", fix))
        if any(MAKES.search(name) for call in recorder.calls for name in names_of(call)):
            content[MICRO] = USUAL_BATCH
    elif takes and _takes_defaults(recorder.calls):
        content[MICRO] = USUAL_BATCH
        recorder.assumed.append(f"{MICRO} is not given: the Trainer's default of {USUAL_BATCH}")
    if RECOMPUTES.search(text):
        content.setdefault("gradient_checkpointing", True)
    if RANKS.search(unread.pop("device_map", "")):
        content["device_map"] = {}
    return without(content, steps) | dict(steps), without(unread, steps)


def _takes_defaults(calls: Sequence[Call]) -> bool:
    """Return whether a program makes a Trainer's arguments itself, and all that it gives them is known."""
    made = [call for call in calls if any(map(MAKES.search, names_of(call)))]
    return bool(made) and not any(call.open for call in made)


def _content(calls: list[Call], given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments of calls by the keys of TrainingArguments, and those that only running shows."""
    content, unread, once = dict[str, Any](), dict[str, str](), set[str]()
    loops = not any(MAKES.search(name) for call in calls for name in names_of(call))
    for call in calls:
        for row in rows_of(call, once, loops=loops):
            if row.get("used") and not _is_taken(call, calls):
                if any(other.name == call.name and _is_taken(other, calls) for other in calls):
                    break  # one that was only tried
                unread.setdefault(call.name, "made, and taken by nothing that is read")
            sets = row.get("sets", {})
            content |= {key: value for key, value in sets.items() if not call.open or key not in ADAPTERS}
            for name, item in {
                **dict(zip(row.get("args", ()), call.args, strict=False)),
                **_fields_of(call, given),
            }.items():
                value = loaded_from(item)
                key = row["keys"].get(name, name if "*" in row["keys"] else None)
                made = isinstance(value, Call) and (value.known or key == "model_name_or_path")
                if key is None or made or value is None or (name == "is_trainable" and value is False):
                    continue
                if text := _open_text(key, value):
                    unread[key] = text
                else:
                    content[key] = _shown(value)
            unread |= _unpacked(call, row, content) if call.open else {}
    return content, unread


def _unpacked(call: Call, row: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, str]:
    """Return what a call is given that only running shows."""
    if "*" in row["keys"]:
        batch = {key: f"in {call.open}" for key in OPEN if key not in content}
        return {**batch, "what else it is given": f"in {call.open}"}
    last = call.name.rpartition(".")[2]
    return {} if MAKES.search(call.name) else {f"what {last} is given": f"in {call.open}"}


ENGINES: Final = frozenset(("deepspeed", "deepspeed_config", "fsdp"))
"""Arguments that say how states are sharded."""
ENABLED: Final = re.compile(r"gradient_checkpointing_enable$")
"""A method that turns recomputation on, which arguments of a Trainer do not turn off."""


def _lay_unsloth(content: dict[str, Any], calls: Sequence[Call]) -> dict[str, str]:
    """Lay what unsloth makes of a model's name and of training all parameters; return what its release decides."""
    unread = {}
    if content.get("gradient_checkpointing") is False:
        adapted = [call for call in calls if re.search(r"Fast\w*Model\.get_peft_model$", call.name)]
        if any(call.fields.get("use_gradient_checkpointing", True) for call in adapted):
            unread["gradient_checkpointing"] = "on in get_peft_model and off in the arguments, taken as on"
        if unread or any(ENABLED.search(call.name) and call.known for call in calls):
            content["gradient_checkpointing"] = "unsloth" if unread else True
    if isinstance(named := content.get("model_name_or_path"), str) and named.endswith("-bnb-4bit"):
        content |= {
            "model_name_or_path": re.sub(r"(?:-unsloth)?-bnb-4bit$", "", named),
            "load_in_4bit": True,
        }
    if content.get("gradient_checkpointing") == "unsloth":
        content["gradient_checkpointing"] = "offload"
    checkpointing = content.pop("full_checkpointing", "unsloth")
    if content.get("load_in_8bit") or content.pop("load_in_16bit", False):
        content["load_in_4bit"] = False
    if content.pop("full_finetuning", False):
        content |= {"load_in_4bit": False}
        usual = "offload" if checkpointing == "unsloth" else checkpointing
        content.setdefault("gradient_checkpointing", usual)
    return unread


def _lay_prepared(content: dict[str, Any], calls: Sequence[Call]) -> str:
    """Recompute a model of few bits that is prepared for training; return why one process trains alone."""
    devices, prepared = content.pop("device_map", None), content.pop("kbit_checkpointing", False)
    if content.get("unsloth"):
        return ""
    if content.get("load_in_4bit") or content.get("load_in_8bit"):
        content["fp32_frozen"] = widened_parts(content, calls)
        content |= {"gradient_checkpointing": True} if prepared else {}
    return placed_by(devices)


def _is_taken(made: Call, calls: Sequence[Call]) -> bool:
    """Whether another call is given a configuration, or a list or table of it."""

    def holds(value: object) -> bool:
        if isinstance(value, Call):
            return value.fields is made.fields
        inside = (
            value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        )
        return any(map(holds, inside))

    others = (
        call for call in calls if call.of is None or call.kinds != (call.name,)
    )  # not what only keeps it
    return any(holds(value) for call in others for value in (*call.args, *call.fields.values()))


def _fields_of(call: Call, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a call, with the defaults of a class that the program declares."""
    fields = call.fields
    if isinstance(fields, Fields):
        return {name: value for name, value in fields.items() if name in given and is_known(name)}
    usual = {name: value for name, value in call.defaults.items() if not isinstance(value, Call | Opaque)}
    return {**usual, **fields}


def _open_text(key: str, value: object) -> str:
    """Return what a value, or an entry of it, is that only running shows, and where; "" of one that is known."""
    if isinstance(value, Opaque) and not value.text.startswith("torch."):
        return f"{value.text} ({place_of(value.place)})"
    if isinstance(value, Call):
        return f"{value.name} ({place_of(value.place)})"
    if isinstance(value, list | tuple | set):
        return next(filter(None, (_open_text("", item) for item in value)), "") or (
            "filled while it runs" if key == "lora_target_modules" and not value else ""
        )
    return ""


CONFIGURES: Final = re.compile(r"(?:^|_)(?:config|cfg|recipe|params)|yaml")
"""Names of arguments that name the file of a program's settings."""
DECIDES: Final = re.compile(
    r"batch|accum|zero|stage|shard|parallel|quant|\dbit|lora_r|rank$|vision|freeze|pre_seq_len|prefix|adapter"
)
"""Arguments of a program's own that it may make much of."""


def _unused(arguments: Arguments, content: Mapping[str, Any]) -> list[str]:
    """Return the warning of arguments that a command gives a program, and that nothing which is read takes."""
    values = {*map(str, content.values())}
    open_names = [
        f"{name} {value}"
        for name, value in arguments.given.items()
        if DECIDES.search(name) and not is_idle(name) and str(value) not in values and name not in content
    ]
    return [f"what the program makes of {', '.join(open_names)} is not known"] if open_names else []


def _several(calls: Sequence[Call]) -> list[str]:
    """Return the warnings of a program with models, or with configurations of trainings, that differ."""
    last = max((at for at, call in enumerate(calls) if any(map(makes, names_of(call)))), default=len(calls))
    names = [model_name(call).rpartition("/")[2] for call in calls[:last] if LOADED.match(call.name)]
    models = dict.fromkeys(re.sub(r"(?:-unsloth)?-bnb-4bit$", "", name) for name in names if name)
    texts = []
    if len(models) > 1:
        texts.append(
            f"it loads {wording.listed(list(models), 'and')}; the first is projected as the one trained (--model)"
        )
    for row in FACTS["calls"]:
        same = [call for call in calls[: last + 1] if is_of(call, row)]
        taken = [call for call in same if not row.get("used") or _is_taken(call, calls)]
        texts += _differing(taken, row)
    return texts


def _differing(calls: Sequence[Call], row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the warnings of calls of one kind that decide the same fact in several ways."""
    is_whole = "*" in row["keys"]
    for name in KEYS if is_whole else row["keys"]:
        if row["keys"].get(name) in ("model_name_or_path", "use_peft"):
            continue
        values = {
            "left out" if value is None else repr(_shown(value)): call
            for call in calls
            if _is_plain(value := call.fields.get(name)) and (is_whole or value is not None)
        }
        if len(values) > 1:
            listed = [f"{value} at {place_of(call.place)}" for value, call in values.items()]
            which = "first" if row.get("first") else "last"
            yield f"{name} is {wording.listed(listed, 'and')}; the {which} is projected"


def _is_plain(value: object) -> bool:
    return not isinstance(value, Call | Opaque)


def _shown(value: Any) -> Any:  # noqa: ANN401
    """Return a value, with names of torch as texts."""
    if isinstance(value, dict):
        return {name: _shown(item) for name, item in value.items() if not isinstance(item, Call)}
    return value.text if isinstance(value, Opaque) else value


def _with_arguments(content: dict[str, Any], arguments: Arguments, text: str) -> dict[str, Any]:
    """Return what calls say with the arguments of a command, and the defaults of the program's own TrainingArguments.

    An argument that the program declares itself means what its calls make of it. Adapters are trained if a call
    makes them, or a switch: ranks that are only declared say nothing, and nor do arguments of adapters that its `text`
    does not ask for.
    """
    target = target_of
    made = set(map(target, content))
    lengths = {key for key in content if target(key) == "max_length"}
    given = {
        key: value
        for key, value in arguments.given.items()
        if (key not in arguments.own or target(key) not in made)
        and not (target(key) == "max_length" and lengths - {key})
        and (is_known(key) or key not in arguments.used)
    }
    content = {key: value for key, value in content.items() if target(key) not in set(map(target, given))}
    if "max_length" not in set(map(target, (*content, *given))) and arguments.length:
        content["max_length"] = arguments.length
    told = set(map(target, (*content, *given)))
    declared = {
        key: value
        for key, value in arguments.declared.items()
        if is_known(key) and target(key) not in told and (not OWN.match(target(key)) or _asks(text, key))
    }
    if not any(value for key, value in {**declared, **content, **given}.items() if target(key) == "use_peft"):
        declared = {k: v for k, v in declared.items() if not target(k).startswith(("lora_", "load_in_"))}
    return {**declared, **content, **given}


def target_of(name: str) -> str:
    """Return the key of TrainingArguments that a name stands for."""
    return record_of("trainer").keys.get(name, name).removeprefix("!")


def _asks(text: str, name: str) -> bool:
    """Whether a program's text asks for an argument, or hands all of them to a function of TRL's."""
    return re.search(rf"""[.'"]{name}\b|\bget_(?:peft|quantization)_config\b""", text) is not None


def _text_of(recorder: Recorder) -> str:
    """Return the text of a program and of the modules next to it that it follows."""
    modules = recorder.world.modules if recorder.world is not None else ()
    return "\n".join(read_text(module) for module in modules if module.stat().st_size)


def is_known(name: str) -> bool:
    """Return whether TrainingArguments, TRL or programs like them have an argument of this name."""
    return name in record_of("trainer").keys or name in packaged("deepspeed", "trainer")["keys"]


def _devices(content: dict[str, Any], dealt: str, start: Start) -> Devices | None:
    """Return the devices of Lightning's Trainer, which are taken out of the content, or of a model on one device."""
    per_node, nodes = content.pop("devices", None), content.pop("num_nodes", 1)
    if not start.kinds and is_placed(dealt, by_command=bool(start.words)):
        return Devices(1, (dealt,))
    if isinstance(per_node, list):
        per_node = len(per_node)
    if not isinstance(per_node, int | str) or not str(per_node).isdigit() or not isinstance(nodes, int):
        return None
    return Devices(int(per_node) * nodes, (f"devices={per_node}", f"num_nodes={nodes}"))


def _distributed(content: dict[str, Any], unread: dict[str, str]) -> dict[str, Any]:
    """Return the keys of TrainingArguments that the types and the strategy of Accelerate and Lightning stand for."""
    mixed, strategy = str(content.pop("mixed_precision", "")), str(content.pop("strategy", ""))
    kind = FACTS["mixed"].get(mixed)
    whole = {"dtype": "float32"} if content.pop("lightning", False) and kind != "bfloat16" else {}
    if strategy not in FACTS["strategies"] and not REPLICATES.match(strategy):
        unread["strategy"] = strategy
    return {**({kind: True} if kind else {}), **whole, **FACTS["strategies"].get(strategy, {})}


def _open_sharding(
    path: Path,
    calls: Sequence[Call],
    content: dict[str, Any],
    unread: dict[str, str],
    options: Options,
    kinds: Sequence[str],
) -> list[MissingFact]:
    """Return what a program leaves open of how its states are sharded, which its calls may decide anywhere."""
    if (stage := sharded_by(calls)[0]) is not None:
        content["fsdp"] = STAGES[stage]
    if text := unread.pop("deepspeed", None):
        return [CONFIGURATION._replace(reason=f"deepspeed is {text}")]
    key = next((key for key in ("fsdp", "strategy") if key in unread), "")
    reason = f"{key} is {unread.pop(key)}" if key else ""
    if not key:
        facts = lay_sharding(read_program(path), content, options.over, path.name, launched=False)
        if facts or "deepspeed" not in kinds or ENGINES & content.keys():
            return facts
        reason = f"deepspeed starts {path.name}, and no argument names its configuration"
    content["fsdp"] = STAGES.get(options.over.get("zero", 3), "full_shard")
    return [STAGE._replace(reason=reason)]
