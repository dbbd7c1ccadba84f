"""Readers of trainers' files, and of the commands that start them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError
from forescale.files import read_text
from forescale.frameworks.deepspeed.trainer import AccelerateReader
from forescale.frameworks.detect import Signed
from forescale.frameworks.reading import Options, ParsedFile, packaged
from forescale.frameworks.shell import Devices, devices_of, follow, launch_of
from forescale.frameworks.trainers.megatron import flags_of, read_megatron
from forescale.frameworks.trainers.record import Record, classified, record_of
from forescale.frameworks.trainers.training import PAIRED, Training, neighbour_of, read_training, stage_of
from forescale.limits import whole_of
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
) -> ParsedFile:
    """Return what the keys of a trainer say, which `launch` (Accelerate's configuration) and `devices` start."""
    record = record_of(form)
    content = _first_form(content)
    flags = flags_of(content)
    others = {key: value for key, value in content.items() if key not in flags}
    keys = classified(others, record, path, lines, strict=options.strict)
    run = Training(
        settings=keys.settings,
        form=form,
        folder=path.parent,
        launch=launch or options.launch,
        num_devices=devices.count if devices else None,
        warnings=list(keys.warnings),
    )
    if devices is not None and options.num_devices is None and options.layout:
        keys.settings.note(f"{counted(devices.count, 'device')}, from {' x '.join(devices.options)}")
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
        remedies={} if flags else _remedies(record, paired=stage_of(keys.settings) in PAIRED),
    )


def _remedies(record: Record, *, paired: bool) -> Mapping[str, Mapping[str, Any]]:
    """Return the remedies of a record; an example of a pair counts for two sequences."""
    micro = {
        key: "{half}" if paired and value == "{value}" else value
        for key, value in record.remedies["micro_batch_size"].items()
    }
    return {**record.remedies, "micro_batch_size": micro}


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


class TrainerReader(Signed):
    """Arguments of Hugging Face's Trainer and of TRL's, in JSON or YAML."""

    name: Final = "trainer"
    title: Final = "Hugging Face TrainingArguments or TRL recipe in JSON or YAML"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the file says, with the DeepSpeed configuration and the model that it names."""
        text = read_text(path)
        content = parse_mapping(text, path, parse_yaml)
        return read_mapping(content, self.name, path, options, lines=key_lines(text, path.suffix))


class AxolotlReader(TrainerReader):
    """Configurations of axolotl."""

    name: Final = "axolotl"  # type: ignore[misc]
    title: Final = "axolotl configuration in YAML"  # type: ignore[misc]


class LlamaFactoryReader(TrainerReader):
    """Configurations of LLaMA-Factory."""

    name: Final = "llamafactory"  # type: ignore[misc]
    title: Final = "LLaMA-Factory configuration in YAML or JSON"  # type: ignore[misc]


class LaunchReader(Signed):
    """Commands that start one of these trainers: accelerate, torchrun, deepspeed, swift, llamafactory-cli, axolotl."""

    name: Final = "launch"
    title: Final = "Command or script that starts a Hugging Face trainer, LLaMA-Factory, axolotl or ms-swift"
    classifies: ClassVar[bool] = True

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return what the first command of a script that trains says."""

        def script(name: str) -> str | None:
            file = neighbour_of(path.parent, name)
            return read_text(file) if file else None

        shell = follow(read_text(path), options.variables, str(path), script)
        runs = [(form, at, words) for words in shell.commands for form, at in [_program(words)] if form]
        if not runs:
            raise ReaderError(
                path, wording.wrong_format("a command that trains", "it starts no trainer that is known")
            )
        form, at, words = runs[0]
        content, lines = _arguments(words[at:], path)
        launch = launch_of(words[:at])
        config = launch.options.get("--config-file")
        devices = devices_of(launch, script) or _visible(shell.variables)
        accelerate = None
        if config is not None:
            file = _required(path, config)
            accelerate = AccelerateReader().read(
                file,
                replace(
                    options,
                    num_devices=options.num_devices or (devices.count if devices else None),
                    strict=False,
                ),
            )
        parsed = read_mapping(content, form, path, options, lines=lines, launch=accelerate, devices=devices)
        several = (f"it starts {counted(len(runs), 'training')}; the first is read",) if len(runs) > 1 else ()
        return replace(parsed, format=self.name, notes=(*several, *parsed.notes))


def _program(words: Sequence[str]) -> tuple[str, int]:
    """Return the record of the trainer that a command starts, and where its arguments begin; "" if it starts none."""
    for form, pattern, arguments in packaged("trainers", "programs")["programs"]:
        for at in range(len(words)):
            text = " ".join(words[at : at + 2])
            if re.match(pattern, text) and (not arguments or re.search(arguments, " ".join(words))):
                return form, at + 1
    return "", 0


def _arguments(words: Sequence[str], path: Path) -> tuple[dict[str, Any], Mapping[str, int]]:
    """Return the arguments of a program, over those of the configuration that it is given."""
    values: dict[str, Any] = {}
    files: list[str] = []
    name = ""
    for word in words:
        flag, equals, value = word.partition("=")
        if flag.startswith("--"):
            name = flag[2:].replace("-", "_")
            values[name] = _plain(value) if equals else True
        elif name and values[name] is True:
            values[name] = _plain(word)
        elif word.endswith((".yaml", ".yml", ".json")) and (not name or not files):
            files.append(word)
        elif name:
            old = values[name]
            values[name] = [*(old if isinstance(old, list) else [old]), _plain(word)]
    named = [values.pop(key, None) for key in ("config", "config_file")]
    files += [file for file in named if isinstance(file, str)]
    if not files:
        return values, {}
    file = _required(path, files[0])
    text = read_text(file)
    return {**parse_mapping(text, file, parse_yaml), **values}, {}


def _plain(word: str) -> Any:  # noqa: ANN401  (a value of YAML)
    return {"true": True, "false": False, "none": None, "null": None}.get(word.lower(), word)


def _required(path: Path, name: str) -> Path:
    """Return a file that a command names; a folder that depends on where it runs is the script's."""
    if (
        file := neighbour_of(path.parent, name) or neighbour_of(path.parent, name.rpartition("/")[2])
    ) is None:
        raise ReaderError(
            path, wording.not_found(f"file {name}", "put it next to the script, or give it in its place")
        )
    return file


def _visible(variables: Mapping[str, Sequence[str]]) -> Devices | None:
    """Return the devices of NPROC_PER_NODE and NNODES, or of CUDA_VISIBLE_DEVICES."""

    def number(name: str) -> int | None:
        return whole_of(" ".join(variables.get(name, ())))

    per_node, nodes = number("NPROC_PER_NODE"), number("NNODES")
    if per_node:
        parts = [f"NPROC_PER_NODE={per_node}", *([f"NNODES={nodes}"] if nodes else [])]
        return Devices(per_node * (nodes or 1), tuple(parts))
    visible = " ".join(variables.get("CUDA_VISIBLE_DEVICES", variables.get("ASCEND_RT_VISIBLE_DEVICES", ())))
    if re.fullmatch(r"\d+(?:,\d+)*", visible):
        return Devices(visible.count(",") + 1, (f"CUDA_VISIBLE_DEVICES={visible}",))
    return None
