"""Readers of trainers' files, and of the commands that start them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, TypeAlias

from msgspec.structs import replace

from forescale import wording
from forescale.errors import MissingError, ReaderError, UnknownNameError
from forescale.files import read_text
from forescale.frameworks.detect import Signed
from forescale.frameworks.megatron.ask import open_facts
from forescale.frameworks.megatron.model import MICRO_BATCH
from forescale.frameworks.reading import Options, ParsedFile, flat, packaged
from forescale.frameworks.recipes.reader import read_recipe
from forescale.frameworks.settings import Settings
from forescale.frameworks.shell import Devices, Script, Use, devices_of, follow, launch_of
from forescale.frameworks.trainers.accelerated import accelerated, content_of, launched, required_file
from forescale.frameworks.trainers.commands import (
    arguments_of,
    by_text,
    in_folder,
    loops,
    own_arguments,
    own_program,
    program_file,
    unknown_program,
)
from forescale.frameworks.trainers.devices import (
    actor_devices,
    alone,
    environment_of,
    ray_devices,
    split_models,
    started_devices,
    variables_of,
)
from forescale.frameworks.trainers.facts import CONFIGURATION, of_one_process, without_facts
from forescale.frameworks.trainers.megatron import flags_of, read_megatron
from forescale.frameworks.trainers.outline import followed, left_open, unread_optimizer, warnings_of
from forescale.frameworks.trainers.performance import long_options, read_performance
from forescale.frameworks.trainers.precision import compute_of
from forescale.frameworks.trainers.program import (
    STAGE,
    STAGES,
    Program,
    lay_sharding,
    made_type,
    read_program,
    with_changes,
)
from forescale.frameworks.trainers.recipe import POLICY, RECIPE, closed, recipe_of, usual_config
from forescale.frameworks.trainers.record import Record, classified, record_of
from forescale.frameworks.trainers.release import open_release
from forescale.frameworks.trainers.run import MICRO, STEPS, Start, Training, neighbour_of
from forescale.frameworks.trainers.stages import PAIRED, SAMPLED, is_paired, stage_of
from forescale.frameworks.trainers.training import read_training
from forescale.frameworks.trainers.written import table_of, with_tables
from forescale.positions import key_lines
from forescale.syntax import parse_mapping, parse_yaml
from forescale.units import counted


def read_mapping(
    content: Mapping[str, Any],
    form: str,
    path: Path,
    options: Options,
    *,
    lines: Mapping[str, int],
    launch: ParsedFile | None = None,
    devices: Devices | None = None,
    program: str = "",
) -> ParsedFile:
    """Return what the keys of a trainer say, which `launch` (Accelerate's configuration) and `devices` start.

    `program` is one of a person's own, whose defaults are not known.
    """
    record = record_of(form)
    content = _first_form(_unfolded(content))
    flags = flags_of(content)
    others = {key: value for key, value in content.items() if key not in flags}
    if flags:
        record = replace(record, defaults={**record.defaults, **record.megatron_defaults})
    older = program and not content.keys().isdisjoint(record.older_keys)
    if older or ("torch_dtype" in content and content["torch_dtype"] is None):
        record = replace(record, defaults={**record.defaults, **record.older_defaults})
    keys = classified(others, record, path, lines, strict=options.strict)
    launch, count = _launched(keys.settings, launch, devices)
    run = Training(
        settings=keys.settings,
        form=form,
        folder=path.parent,
        launch=launch or options.launch,
        num_devices=count,
        warnings=list(keys.warnings),
        program=program,
        over=options.over,
    )
    run.warnings.extend(_open(run, content, is_own=bool(program or flags or options.strict)))
    for note in _origin(devices, options):
        keys.settings.note(note)
    parsed = read_megatron(run, content, options) if flags else read_training(run, options)
    written = {
        name: [key for key in getattr(parsed, name) if key in content or "." in key]
        for name in ("used", "ignored")
    }
    return replace(
        parsed,
        used=tuple(written["used"]),
        ignored=(*written["ignored"], *keys.ignored),
        unknown=(*parsed.unknown, *keys.unknown),
        remedies={} if flags else _remedies(record, run),
    )


def _open(run: Training, content: Mapping[str, Any], *, is_own: bool) -> list[str]:
    """Return the warnings of defaults that differ between releases."""
    if run.form == "llamafactory" and not {"cutoff_len", "max_length"} & content.keys():
        return [
            "cutoff_len is not given: 2,048 tokens, which were 1,024 until LLaMA-Factory 0.9.0 (--seq-len)"
        ]
    if run.form != "trainer" or is_own:
        return []
    return open_release(run.settings, samples=stage_of(run.settings) in SAMPLED)


def _origin(devices: Devices | None, options: Options) -> tuple[str, ...]:
    """Return the note of where the number of devices is from, if a command gives it."""
    if devices is None or options.num_devices is not None or not options.layout:
        return ()
    return (f"{counted(devices.count, 'device')}, from {' x '.join(devices.options)}",)


def _remedies(record: Record, run: Training) -> Mapping[str, Mapping[str, Any]]:
    """Return the remedies of a record; an example of a pair counts for two sequences.

    Keys of FSDP give way to those of the file that shards the states: DeepSpeed's configuration, or accelerate's.
    """
    paired = is_paired(run.settings)
    micro = {
        key: "{half}" if paired and value == "{value}" else value
        for key, value in record.remedies["micro_batch_size"].items()
    }
    kept = {**record.remedies, "micro_batch_size": micro}
    if run.launch is None and not run.settings.get("deepspeed"):
        return kept
    engine = "deepspeed" if run.launch is None else "accelerate-deepspeed"
    if run.launch is not None and run.launch.framework != "deepspeed-zero":
        engine = "accelerate-fsdp"
    own = {kind: keys for kind, keys in kept.items() if "fsdp" not in keys}
    return {**packaged("trainers", "engines")[engine], **own}


def _unfolded(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return TRL's keys with those of `model_init_kwargs`, which `from_pretrained` takes."""
    inside = content.get("model_init_kwargs")
    if not isinstance(inside, Mapping):
        return content
    others = {key: value for key, value in content.items() if key != "model_init_kwargs"}
    return {
        **{
            key: value
            for key, value in inside.items()
            if key in ("dtype", "torch_dtype", "attn_implementation")
        },
        **others,
    }


def _first_form(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return LLaMA-Factory's keys of version 1 (`dist_config`, `peft_config`, `quant_config`) by those of before."""
    if "model_class" not in content:
        return content
    tables = {key: content.get(key) or {} for key in ("dist_config", "peft_config", "quant_config")}
    dist, peft, quant = tables.values()
    more: dict[str, Any] = {
        "finetuning_type": "lora" if peft.get("name") == "lora" else "freeze" if peft else "full",
        "lora_rank": peft.get("r"),
        "lora_target": peft.get("target_modules"),
        "quantization_bit": quant.get("quantization_bit"),
        "deepspeed": dist.get("config_file"),
        "fsdp": "full_shard" if dist.get("name") == "fsdp2" else None,
        "bf16": True,
    }
    return {
        **{key: value for key, value in more.items() if value},
        **{k: v for k, v in content.items() if k not in tables},
    }


IDLE: Final = ("do_predict", "task", "infer_backend", "export_dir")
"""Keys of LLaMA-Factory's files that train nothing, unless they have `do_train`."""
SWIFT: Final = frozenset(("tuner_type", "train_type", "sft_type", "rlhf_type"))
"""Keys of ms-swift, which takes its arguments from a file as well."""


class TrainerReader(Signed):
    """Arguments of Hugging Face's Trainer and of TRL's, in JSON or YAML."""

    name: Final = "trainer"
    title: Final = "Hugging Face TrainingArguments or TRL recipe in JSON or YAML"
    classifies: ClassVar[bool] = True
    takes_last: ClassVar[bool] = True
    """Whether the last value of a repeated key counts, as with yaml.safe_load; OmegaConf refuses the file."""

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the file says, with the DeepSpeed configuration and the model that it names."""
        text, notes = read_text(path), list[str]()
        content = parse_mapping(text, path, partial(parse_yaml, repeated=notes if self.takes_last else None))
        form = "swift" if self.name == TrainerReader.name and SWIFT & content.keys() else self.name
        lines, devices = key_lines(text, path.suffix), ray_devices(content)
        parsed = read_mapping(content, form, path, options, lines=lines, devices=devices)
        return replace(parsed, format=self.name, notes=(*notes, *parsed.notes))


class AxolotlReader(TrainerReader):
    """Configurations of axolotl."""

    name: Final = "axolotl"  # type: ignore[misc]
    title: Final = "axolotl configuration in YAML"  # type: ignore[misc]


class LlamaFactoryReader(TrainerReader):
    """Configurations of LLaMA-Factory."""

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the file says, if it trains."""
        content = content_of(path)
        idle = next((key for key in IDLE if content.get(key)), "no stage and no dataset")
        trains = content.keys() & {"stage", "dataset"} and idle not in IDLE
        if not trains and not content.get("do_train"):
            text = f"it has {idle}, and no do_train"
            raise ReaderError(path, wording.wrong_format("a configuration that trains", text))
        return super().read(path, options)

    takes_last: ClassVar[bool] = False
    name: Final = "llamafactory"  # type: ignore[misc]
    title: Final = "LLaMA-Factory configuration in YAML or JSON"  # type: ignore[misc]


Run: TypeAlias = tuple[str, int, list[str]]
"""The record of the trainer that a command starts, the place of its arguments, and its words."""


class LaunchReader(Signed):
    """Commands that start one of these trainers: accelerate, torchrun, deepspeed, swift, llamafactory-cli, axolotl."""

    name: Final = "launch"
    title: Final = "Command or script that starts a Hugging Face trainer, LLaMA-Factory, axolotl or ms-swift"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the first command of a script that trains says."""
        return self.read_commands(read_text(path), path, options)

    def read_commands(self, text: str, path: Path, options: Options) -> ParsedFile:
        """Return what the first of some commands that trains says, in a script at `path` or next to it."""

        def script(name: str) -> str | None:
            return read_text(file) if (file := neighbour_of(path.parent, name)) else None

        shell = follow(text, options.variables, str(path), script, options.arguments)
        runs = _runs(shell)
        if not any(words[at:] for _, at, words in runs):
            parsed, runs = self._followed(shell, runs, path, text, options)
            if parsed is not None:
                return replace(parsed, format=self.name)
        form, at, words = by_text(runs[0], path)
        several = (f"it starts {counted(len(runs), 'training')}; the first is read",)[: len(runs) - 1]
        if form in (BRIDGE, PERFORMANCE):
            return self._bridged(form, words, at, path, options, several)
        starts = words[:at] if form != RECIPE else [*words[: at - 1], "torchrun", *words[at:]]
        launch = launched(starts, path, options, shell.files)
        values, files = arguments_of(words[at:])
        values |= _stage(form, words[at - 1])
        named, *more = in_folder(words[at:], files) or [usual_config(words[at - 1])]
        given = {**values, "config": named, "config_file": launch.options.get("--config-file")}
        _refuse_open(path, text, shell.unset, given, form)
        values = closed(values) if form in (RECIPE, POLICY) else with_tables(values, shell.files, path)
        table = table_of(shell.files, named, path)
        file = required_file(path, named) if named and table is None else None
        visible = environment_of(shell, words)
        devices = actor_devices(values) or started_devices(shell, launch, path, visible, form, script)
        outer = replace(options, num_devices=options.num_devices or (devices and devices.count), strict=False)
        recipe = recipe_of(form, words[at - 1 :], [named, *more], file, values, path, outer)
        if recipe is not None:
            recipe = with_changes(recipe, words[at - 1 :], path)
            return replace(recipe, format=self.name, notes=(*_origin(devices, options), *recipe.notes))
        program = own_program(words, at) if form == "trainer" else words[at - 1]
        own = own_arguments(program_file(path, program), words[at:], values, named)
        start = _start(shell, launch.kinds, words[at:], program, devices)
        start = replace(start, own=own, launch=accelerated(launch, path, outer, shell.files))
        content = table or ({} if file is None or _is_own(file, own) else content_of(file))
        parsed = self.trained({**content, **values}, form, path, options, start)
        parsed = of_one_process(parsed, path, options.num_devices, alone(form, devices, visible))
        warnings = (*parsed.warnings, *split_models(visible))
        return replace(parsed, format=self.name, warnings=warnings, notes=(*several, *parsed.notes))

    def _bridged(
        self, form: str, words: list[str], at: int, path: Path, options: Options, several: tuple[str, ...]
    ) -> ParsedFile:
        """Return what a command of Megatron-Bridge says."""
        if form == PERFORMANCE:
            return read_performance(arguments_of(long_options(words[at:]))[0], path, options)
        parsed = self.overrides(words, at, path, options)
        return replace(parsed, notes=(*several, *parsed.notes))

    def trained(
        self, values: Mapping[str, Any], form: str, path: Path, options: Options, start: Start
    ) -> ParsedFile:
        """Return what the arguments of a program say: a person's own is followed, or else looked through."""
        form = "llamafactory" if form == "trainer" and values.keys() >= {"stage", "finetuning_type"} else form
        own = Path(start.program).name if form == "trainer" else ""
        _refuse_other(path, own, values)
        if "dpo" not in f"{path.name}{start.program}".lower():
            _refuse_sampling(path, own, values)
        file = program_file(path, start.program)
        program = read_program(file if own else None)
        typed = made_type(file) if form == "deepspeed-chat" and "dtype" not in values else {}
        added = program.content(values, record_of(form)) | typed
        content = {**added, **values}
        launched = options.launch is not None or start.leaves_nothing_to_shard(options.num_devices)
        facts = lay_sharding(program, content, options.over, own, launched=launched)
        laid = {"fsdp": content["fsdp"]} if facts and "fsdp" in content else {}
        given = {**values, **laid}
        parsed = None
        for arguments in ([] if start.own is None else [start.own]) + [given] * bool(own):
            read = self.programmed(file, arguments, options, start)
            is_open = read is None or (MICRO in given and MICRO_BATCH in read.missing)
            parsed = read if parsed is None or not is_open else parsed
            if not is_open:
                break
        if parsed is None:
            program = followed(program, file if own else None, given, start, options.num_devices)
            added = program.content(values, record_of(form)) | typed
            taken = program.taken(values, record_of(form))
            content = {**added, **laid, **{k: value for k, value in values.items() if k not in taken}}
            known = {CONFIGURATION.what: "deepspeed" in program.calls, STAGE.what: program.stage is not None}
            content |= {} if program.stage is None or not laid else {"fsdp": STAGES[program.stage]}
            facts = [fact for fact in facts if not known.get(fact.what)]
            parsed = _outlined(content, added, form, path, options, start, program)
            facts = [*facts, *left_open(parsed, program, content, own, () if facts else start.kinds)]
        if program.freezes and not {"trainable", "lora_rank"} & {*parsed.workload_fields, *options.over}:
            text = f"{own} freezes parameters itself, which are projected as trained (--freeze, --lora-rank)"
            is_told = any("freezes parameters" in warning for warning in parsed.warnings)
            parsed = parsed if is_told else replace(parsed, warnings=(*parsed.warnings, text))
        warnings = (*parsed.warnings, *warnings_of(parsed, own, program, values))
        if own and file is None and not EXAMPLES.fullmatch(own) and not _are_told(parsed, options):
            warnings = (*warnings, ABSENT.format(own))
        parsed = replace(parsed, warnings=warnings)
        return without_facts(parsed, facts) if facts else parsed

    def _followed(
        self, shell: Script, runs: list[Run], path: Path, text: str, options: Options
    ) -> tuple[ParsedFile | None, list[Run]]:
        """Return what a program says whose settings are its own; else the commands that train, with people's own."""
        try:
            return self.started(shell, path, options), runs
        except ReaderError:
            if not (runs := runs or _runs(shell, own=True) or loops(shell.commands, path.parent)):
                shell.refuse_stopped(path)
                _refuse_choices(shell, path, text)
                raise
        return None, runs

    def overrides(self, words: Sequence[str], at: int, path: Path, options: Options) -> ParsedFile:
        """Return what a command of Megatron-Bridge changes of a recipe, which is of the model in the recipe's name."""
        if printed := next((word for word in words[at:] if word.startswith("$(")), None):
            fix = f"{printed[:40]} is what a command prints; write its options out"
            raise ReaderError(path, wording.wrong_format("a command with its options", fix))
        devices = devices_of(launch_of(words[:at]))
        values, files = arguments_of(words[at:])
        model, named = (
            options.model,
            re.sub(r"(?:_(?:sft|peft|pretrain|finetune))?_config.*$", "", str(values["recipe"])),
        )
        if model is None and options.model_of is not None:
            with suppress(UnknownNameError):
                model = options.model_of(named.replace("_", "-"))
        outer = replace(
            options, model=model, num_devices=options.num_devices or (devices and devices.count), strict=False
        )
        inside = {key: value for name in files for key, value in flat(content_of(required_file(path, name)))}
        parsed = read_recipe(BRIDGE, {**inside, **values}, path, outer, {})
        notes = (*_origin(devices, options), *parsed.notes)
        return replace(parsed, format=self.name, model=parsed.model or model, notes=notes)

    def programmed(
        self,
        file: Path | None,  # noqa: ARG002  (of readers that follow other programs)
        given: Mapping[str, Any],  # noqa: ARG002
        options: Options,  # noqa: ARG002
        start: Start,  # noqa: ARG002
    ) -> ParsedFile | None:
        """Return what a program of a person's own makes of its arguments; None if it is not read."""
        return None

    def started(
        self,
        shell: Script,
        path: Path,
        options: Options,  # noqa: ARG002  (of readers that follow other programs)
    ) -> ParsedFile:
        """Return what a program that is no trainer by its name says."""
        names = sorted(
            filter(None, map(unknown_program, shell.commands)), key=lambda name: not name.endswith(".py")
        )
        programs = dict.fromkeys(names)
        if not programs:
            raise ReaderError(
                path, wording.wrong_format("a command that trains", "it starts no known trainer")
            )
        starts = f"it starts {wording.listed(list(programs)[:2], 'and')}, which is not a known trainer"
        fix = "give the file that it reads its settings from, or a model with --seq-len, --global-batch-size and so on"
        raise ReaderError(path, wording.wrong_format("a command that trains", starts, fix))


def _start(
    shell: Script, kinds: Collection[str], words: Sequence[str], program: str, devices: Devices | None
) -> Start:
    """Return what starts a program with `words`."""
    return Start(
        launch=None,
        devices=devices,
        program=program,
        variables=variables_of(shell),
        words=tuple(words),
        kinds=tuple(kinds),
    )


def _is_own(file: Path, own: Mapping[str, Any] | None) -> bool:
    """Whether a program loads a file itself that is neither YAML nor JSON."""
    return own is not None and file.suffix not in (".yaml", ".yml", ".json")


def _are_told(parsed: ParsedFile, options: Options) -> bool:
    """Whether the arguments of a program or flags say what it trains and with which recomputation."""
    return "recompute" in options.over and bool(
        {"trainable", "lora_rank"} & {*parsed.workload_fields, *options.over}
    )


def _runs(shell: Script, *, own: bool = False) -> list[Run]:
    """Return the commands that train, by their record, and of people's `own` programs too."""
    programs = packaged("trainers", "programs")
    rows = [*programs["programs"], *(programs["own"] if own else ())]
    return [(form, at, words) for words in shell.commands for form, at in [_program(words, rows)] if form]


def _refuse_choices(shell: Script, path: Path, text: str) -> None:
    """Refuse a script that starts nothing until an argument or a variable chooses a program."""
    if facts := open_facts(Settings({}, str(path)), shell.unset, text, {}):
        raise MissingError.of(path, facts) from None


def _refuse_other(path: Path, own: str, values: Mapping[str, Any]) -> None:
    """Refuse a command that trains nothing, and a program of Megatron-LM whose flags stand in a file of its own."""
    if str(values.get("do_train", "")).lower() == "false":
        raise ReaderError(path, wording.wrong_format("a command that trains", "it has do_train false"))
    if MEGATRON.fullmatch(own) and {"num_layers", "hidden_size"} & values.keys():
        fix = "they stand in the file that it names; give them as a table of flags (--num-layers: 12)"
        raise ReaderError(path, wording.wrong_format("a command with Megatron-LM's flags", fix))


def _refuse_sampling(path: Path, own: str, values: Mapping[str, Any]) -> None:
    """Refuse a program with an actor and a critic, whose steps train and sample in turn."""
    if own and all(any(key.startswith(name) for key in values) for name in ACTORS):
        fix = "give MODEL and the layout of its training step alone"
        what = f"reinforcement learning with {own}, whose steps train and sample in turn,"
        raise ReaderError(path, wording.not_expressed(what, "", fix))


ABSENT: Final = (
    "{} is not found: adapters, number formats and recomputation that it decides itself are not known"
)
EXAMPLES: Final = re.compile(r"run_\w+\.py|(?:sft|dpo|grpo|kto|orpo|cpo|gkd|ppo|rloo|reward_modeling)\w*\.py")
"""Programs of Transformers, TRL and those like them, which their arguments describe."""
ACTORS: Final = ("actor_", "critic_")
"""Beginnings of the arguments of programs that learn from what they sample."""


def _outlined(
    content: Mapping[str, Any],
    added: Mapping[str, Any],
    form: str,
    path: Path,
    options: Options,
    start: Start,
    program: Program,
) -> ParsedFile:
    """Return what the arguments of a program say, with those of them that its text `added`."""
    own = Path(start.program).name if form == "trainer" else ""
    parsed = read_mapping(
        content, form, path, options, lines={}, launch=start.launch, devices=start.devices, program=own
    )
    notes, warnings = [], []
    if added:
        listed = ", ".join(f"{name} {value}" for name, value in added.items())
        notes.append(f"of {own or start.program} itself: {listed}")
    decided = {record_of(form).keys.get(name, name) for name in content}
    decided |= {"use_peft"} if "lora_r" in decided else set()
    if doubtful := [name for key, name in program.doubtful.items() if key not in decided]:
        called = ", ".join(doubtful)
        warnings.append(
            f"{own} calls {called} under a condition, taken as not met (--lora-rank, --recompute)"
        )
    warnings += [*program.warnings, *unread_optimizer(own, program, content, options.over)]
    told = next(((name, value) for name, value in content.items() if value in PREFERRING), None)
    if told is not None and own and not {"stage", "rl", "rlhf_type"} & content.keys():
        warnings.append(f"{told[0]}: {told[1]} is projected as examples of one sequence and no other model")
    return replace(parsed, notes=(*notes, *parsed.notes), warnings=(*parsed.warnings, *warnings))


PREFERRING: Final = (*PAIRED, "kto", "ppo", "grpo", "rlhf")
"""Values of a program's own arguments that name a training of more than one sequence or model."""


def _launched(
    settings: Settings, launch: ParsedFile | None, devices: Devices | None
) -> tuple[ParsedFile | None, int | None]:
    """Return what accelerate lays out and the devices of the command; the Trainer's own `deepspeed` comes first.

    Its `mixed_precision` is what the Trainer computes in, unless that has a type of its own, then DeepSpeed's as well.
    """
    count = devices.count if devices else None
    mixed = "" if launch is None else launch.workload_fields.get("precision", {}).get("compute")
    if mixed in ("bf16", "fp16") and compute_of(settings) == "tf32":
        settings.set(mixed, value=True)
    kind = compute_of(settings)
    if (
        launch is not None
        and launch.framework == "deepspeed-zero"
        and mixed == "tf32"
        and kind in ("bf16", "fp16")
    ):
        types = dict.fromkeys(("compute", "parameters", "gradients", "activations"), kind)
        launch = replace(launch, workload_fields={**launch.workload_fields, "precision": types})
    if launch is None or not isinstance(settings.get("deepspeed"), str | Mapping):
        return launch, count
    for note in launch.notes:
        settings.note(note)
    return None, count or launch.num_devices


def _stage(form: str, program: str) -> dict[str, Any]:
    """Return the stage of a program of OpenRLHF, which has one for each."""
    named = re.search(r"train_([a-z]+)", program) if form == "openrlhf" else None
    return {"stage": named[1]} if named else {}


def _program(words: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[str, int]:
    """Return the record of the trainer that a command starts, and where its arguments begin; "" if it starts none."""
    for form, pattern, arguments in rows:
        for at in range(len(words)):
            text = " ".join(words[at : at + 2])
            if re.match(pattern, text) and (not arguments or re.search(arguments, " ".join(words))):
                return form, at + 1
    return "", 0


PERFORMANCE: Final = "performance"
"""Scripts of Megatron-Bridge that take a recipe's name."""
BRIDGE: Final = "bridge-yaml"
"""Recipes of Megatron-Bridge, which a command or a file changes."""
MEGATRON: Final = re.compile(r"pretrain_\w+\.py")
"""Programs of Megatron-LM and its copies."""
DECIDING: Final[dict[str, str]] = {
    MICRO: "1",
    STEPS: "1",
    "max_length": "2048",
    "config": "sft.yaml",
    "config_file": "ds.yaml",
}
"""Arguments that a projection needs as they are, with the value that an example gives."""


def _refuse_open(
    path: Path, text: str, unset: Mapping[str, Use], values: Mapping[str, Any], form: str
) -> None:
    """Refuse a script with variables that nothing sets in arguments that count.

    Raises
    ------
    MissingError
        With all of them.
    """
    is_recipe = form in (RECIPE, POLICY)
    record = record_of("trainer" if is_recipe else form)
    deciding = DECIDING | {name: DECIDING[key] for name, key in record.keys.items() if key in DECIDING}
    deciding |= packaged("recipes", "common")["deciding"] if is_recipe else {}
    if facts := open_facts(Settings(values, str(path)), unset, text, deciding):
        raise MissingError.of(path, facts)
