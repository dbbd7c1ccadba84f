"""Every reader of a framework's configuration, and finding the right one by a file's content."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Final, NoReturn

from msgspec.structs import replace

from forescale import wording
from forescale.errors import MissingError, MissingFact, ReaderError, SpecError, UnknownNameError, removed
from forescale.files import is_file, is_folder, read_text
from forescale.frameworks.adapters import AdapterReader
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.deepspeed.reader import DeepSpeedReader
from forescale.frameworks.deepspeed.trainer import AccelerateReader
from forescale.frameworks.described import DescribedReader
from forescale.frameworks.detect import Detection, Signed, detect, detect_script
from forescale.frameworks.huggingface import load_huggingface
from forescale.frameworks.maxtext.reader import MaxTextReader
from forescale.frameworks.megatron import MegatronReader
from forescale.frameworks.nanotron.reader import NanotronReader
from forescale.frameworks.primus.reader import PrimusReader
from forescale.frameworks.reading import Options, ParsedFile, Reader, Variables
from forescale.frameworks.recipes.reader import readers as recipe_readers
from forescale.frameworks.shell import devices_of, follow, is_unset, launch_of
from forescale.frameworks.shell.near import near
from forescale.frameworks.shell.syntax import has_program
from forescale.frameworks.torchtitan.reader import TorchtitanJobReader
from forescale.frameworks.torchtitan.toml import options_of_toml
from forescale.frameworks.traces import TraceReader
from forescale.frameworks.trainers.olmo_core import OlmoCoreReader
from forescale.frameworks.trainers.program import is_loop
from forescale.frameworks.trainers.readers import (
    AxolotlReader,
    LlamaFactoryReader,
    TrainerReader,
)
from forescale.frameworks.trainers.run import found_by_end
from forescale.frameworks.trainers.script import ScriptLaunchReader, ScriptReader, trains
from forescale.limits import whole_of
from forescale.logs import format_of
from forescale.positions import says_lines
from forescale.syntax import parse_mapping, parse_yaml


class HuggingFaceReader(Signed):
    """The `config.json` of a Hugging Face model: a model, no layout."""

    name: Final = "huggingface"
    title: Final = "Hugging Face config.json"

    def read(self, path: Path, options: Options) -> ParsedFile:
        """Return the model at `path`."""
        seq_len = options.over.get("seq_len")
        huggingface = load_huggingface(path, seq_len=seq_len if isinstance(seq_len, int) else None)
        return ParsedFile(format=self.name, model=huggingface.model, ignored=huggingface.ignored)


READERS: tuple[Reader, ...] = (
    HuggingFaceReader(),
    MegatronReader(),
    PrimusReader(),
    DeepSpeedReader(),
    TrainerReader(),
    AxolotlReader(),
    LlamaFactoryReader(),
    ScriptLaunchReader(),
    ScriptReader(),
    OlmoCoreReader(),
    AccelerateReader(),
    NanotronReader(),
    TorchtitanJobReader(),
    MaxTextReader(),
    BridgeReader(),
    AdapterReader(),
    TraceReader(),
    DescribedReader(),
    *recipe_readers(),
)
"""All readers; a new one is added here and must pass `check_reader` (tests/conformance)."""


LARGEST: Final = 4 * 2**20
"""Bytes of a framework's configuration."""


LINES: Final = 5_000
"""Lines of a file of no known format that are looked at for a misspelt key."""


@says_lines
def read_file(path: str | Path, options: Options | None = None) -> ParsedFile:
    """Return what a framework's configuration file says, in whichever known format it is.

    Raises
    ------
    ReaderError
        If no reader knows the format; the message lists those that can be read.
    """
    file = Path(path)
    if is_folder(file):
        return HuggingFaceReader().read(file, options or Options())
    text, explicit = read_text(file, most=LARGEST), options or Options()
    if (detection := detect(text)) is not None and detection.name == "helm":
        file, explicit = _started_by_chart(text, file, explicit)
        text = read_text(file, most=LARGEST)
    try:
        reader = reader_of(text, file, explicit)
        if reader.name == ScriptLaunchReader.name and (parsed := _configured(text, file, explicit)):
            return parsed
        return _read(reader, file, explicit)
    except RecursionError as error:
        raise ReaderError(file, wording.too_deep()) from error


def _started_by_chart(text: str, file: Path, options: Options) -> tuple[Path, Options]:
    """Return the script next to the values of a Helm chart, which starts it on as many devices as they ask for."""
    script = next((file.parent / name for name in SCRIPTS if is_file(file.parent / name)), None)
    if script is None:
        fix = "copy it next to this file, or give the configuration that the chart mounts"
        raise ReaderError(file, wording.not_found(f"script {' or '.join(SCRIPTS)}", fix))
    work = parse_mapping(text, file, parse_yaml).get("workload")
    count = whole_of(str(work.get("gpus"))) if isinstance(work, dict) else None
    return script, replace(options, num_devices=options.num_devices or count)


SCRIPTS: Final = ("launcher.sh", "launch_script.sh")
CONFIG_FILE: Final = re.compile(r"--(?:job[.])?config[-_]file\b")
"""Flags by which commands name the file of a run: of nanotron, and of torchtitan 0.2 and earlier."""


def _configured(text: str, file: Path, options: Options) -> ParsedFile | None:
    """Return what the nanotron file that a script starts a run with says; None where it starts none.

    Raises
    ------
    ReaderError
        If it is TOML of torchtitan 0.2 or earlier, or its devices are not those of the launcher.
    """
    if not CONFIG_FILE.search(text):
        return None
    for command in follow(text, options.variables, str(file), near(file), options.arguments).commands:
        words = [part for word in command for part in (word.split("=", 1) if word[:1] == "-" else [word])]
        named = next(
            ((flag, name) for flag, name in pairwise(words) if CONFIG_FILE.fullmatch(flag)), ("", "")
        )
        if named[0].startswith("--job") and named[1].endswith(".toml"):
            raise ReaderError(file, removed(" ".join(named), TITAN_FIX))
        path = found_by_end(file.parent, named[1]) if named[1].endswith((".yaml", ".yml")) else None
        if path is not None and (kind := detect(read_text(path))) and kind.name == NanotronReader.name:
            return _of_nanotron(path, command, file, options)
    return None


def _of_nanotron(path: Path, command: Sequence[str], file: Path, options: Options) -> ParsedFile:
    """Return what nanotron's file `path` says; nanotron stops on other devices than its degrees make."""
    parsed = _read(NanotronReader(), path, options)
    program = next((at for at, word in enumerate(command) if word.endswith(".py")), 0)
    devices = devices_of(launch_of(command[:program]), near(file))
    count = parsed.num_devices
    if options.num_devices is None and devices is not None and count not in (None, devices.count):
        launched = f"the number of devices of {' x '.join(devices.options)}"
        degrees = f"the product of the degrees of {path.name}"
        raise ReaderError(file, wording.differs(launched, devices.count, degrees, count, "give --devices N"))
    note = f"it starts nanotron with {path.name}, which is read"
    return replace(parsed, format=ScriptLaunchReader.name, notes=(note, *parsed.notes))


def _read(reader: Reader, file: Path, options: Options) -> ParsedFile:
    """Return what a file says; readers that do not classify unknown keys refuse them, whatever `options` say."""
    classifies = getattr(reader, "classifies", False)
    parsed = reader.read(file, options if classifies else replace(options, strict=True))
    if options.strict and parsed.warnings:
        text, fix = "; ".join(parsed.warnings), "leave out --strict"
        raise ReaderError(file, SpecError(f"{text}; {fix}", code="not_expressed", key=text, fix=fix))
    return parsed


MODELS: Final = (HuggingFaceReader(), DescribedReader())
"""Readers of files that describe a model alone."""


def is_bare_model(path: Path) -> bool:
    """Return whether a path is a model alone: a folder, a file of sizes, or JSON that no other reader recognises."""
    if path.suffix not in (".json", ".yaml", ".yml") or not is_file(path):
        return path.suffix == ".json" or is_folder(path)
    detection = detect(read_text(path))
    return path.suffix == ".json" if detection is None else detection.name in {item.name for item in MODELS}


@says_lines
def read_model(path: Path, options: Options) -> ParsedFile:
    """Return what a file says that is a model alone."""
    described = None if is_folder(path) else detect(read_text(path))
    name = HuggingFaceReader.name if described is None else described.name
    return next((item for item in MODELS if item.name == name), MODELS[0]).read(path, options)


def starts_trainer(file: Path, config: Path) -> bool:
    """Return whether `config`, of Accelerate or DeepSpeed, starts the trainer that `file` configures."""
    kinds = [detection.name if (detection := detect(_text_of(path))) else "" for path in (file, config)]
    return kinds[0] in TRAINERS and kinds[1] in (AccelerateReader.name, DeepSpeedReader.name)


TRAINERS: Final = ("trainer", "axolotl", "llamafactory", "launch", "script")


def training_file(folder: Path) -> Path | None:
    """Return the one file of a folder that says how to train, as TrainingArguments do beside a config.json.

    Raises
    ------
    ReaderError
        If there are several.
    """
    paths = [path for path in sorted(folder.iterdir()) if path.suffix in (".json", ".yaml", ".yml")]
    files = [
        path
        for path in paths
        if (kind := detect(_text_of(path))) is not None and kind.name == TrainerReader.name
    ]
    if len(files) > 1:
        named = ", ".join(path.name for path in files)
        fix = "one of their names"
        raise ReaderError(folder, wording.choose_one("configurations of training", named, fix))
    return files[0] if files else None


PARTS_OF_A_RUN: Final = ("huggingface", "described", "deepspeed", "accelerate", "peft", "trace")
"""Formats of files that configure no training by themselves: a model, a layout, an adapter."""


def configures_training(path: Path) -> bool:
    """Return whether a file is the configuration of a training run in a format that is read."""
    text = _text_of(path)
    return any(reader.name not in PARTS_OF_A_RUN and reader.recognises(text) for reader in READERS)


def _text_of(path: Path) -> str:
    """Return the text of a file; nothing where it has none that can be read."""
    try:
        return read_text(path, most=LARGEST)
    except ReaderError:
        return ""


def refuse_unread(variables: Variables, files: Sequence[Path]) -> None:
    """Refuse a variable that no reader of some files asked for, with the nearest that they name.

    Raises
    ------
    UnknownNameError
        If there is one.
    """
    if unread := variables.unread:
        text = "\n".join(read_text(file) for file in files if is_file(file))
        named = re.findall(r"(?<=\$)\w+|(?<=\${)\w+", text)
        kind = f"variable of {' or '.join(file.name for file in files)}"
        raise UnknownNameError(kind, unread[0], dict.fromkeys(named))


def takes_arguments(file: Path) -> bool:
    """Return whether a file is a script that uses its arguments, or passes them on."""
    uses = r"\bargv\b|pars|\bfire\b|\bclick\b|typer" if file.suffix == ".py" else r"\$\{?[1-9@*#]"
    return is_file(file) and re.search(uses, read_text(file)) is not None


def reader_of(text: str, where: object, options: Options | None = None) -> Reader:
    """Return the reader of the format that `text` is in, or that a script which it starts with `options` is in.

    Raises
    ------
    ReaderError
        If it is in none, or in one that is not read.
    """
    return recognised(text, where, options)[0]


def recognised(text: str, where: object, options: Options | None = None) -> tuple[Reader, Detection | None]:
    """Return the reader of a text, and the markers that decided it, perhaps of a script that it starts."""
    suffix = getattr(where, "suffix", "")
    detection = detect(text)
    if suffix == ".py" and detection is not None and detection.name == ScriptLaunchReader.name:
        detection = None  # a command that its text shows
    if detection is None or (detection.name == ScriptLaunchReader.name and _SOURCES.search(text)):
        detection = _started(text, where, options) or detection
    detection = detection or detect_script(text, suffix)
    if (
        detection is None
        and isinstance(where, Path)
        and where.suffix == ".py"
        and (trains(where) or is_loop(where))
    ):
        return ScriptReader(), None
    if detection is None:
        _refuse_unknown(text, where)
    for reader in READERS:
        if reader.name == detection.name:
            return reader, detection
    raise _unread(detection, text, where, options)


def _started(text: str, where: object, options: Options | None) -> Detection | None:
    """Return the format of the script that a script only starts, or takes its flags from; None if it starts none.

    Raises
    ------
    ReaderError
        If that script is not there.
    MissingError
        If it is an argument that `options` do not give.
    """
    if not isinstance(where, Path) or not _STARTS.search(text):
        return None
    text_of, texts = near(where), list[str]()

    def noted(name: str) -> str | None:
        content = text_of(name)
        texts.extend([content] if content else [])
        return content

    given = options or Options()
    script = follow(text, given.variables, str(where), noted, given.arguments)
    is_open = any(is_unset(word) for words in script.commands if has_program(words) for word in words)
    if options is not None and given.arguments is None and is_open and _SOURCES.search(text):
        raise MissingError.of(where, [SOURCED])
    if not texts and script.missing:
        names = ", ".join(dict.fromkeys(script.missing))
        raise ReaderError(where, wording.not_found(f"script {names}", "copy it next to this file"))
    return next(filter(None, map(detect, texts)), None)


_STARTS: Final = re.compile(
    r"^\s*(?:(?:bash|sh|source|sbatch|srun)\s|\.{1,2}[\s/])[^\n]*\.(?:sh|slurm|sbatch)\b"
    r"|^\s*(?:bash|sh|sbatch|srun)\s+[\"']?\$\{?\w|^[ \t]*(?:source|\.)[ \t]+[\"']?\$\{?1\b",
    re.M,
)
_SOURCES: Final = re.compile(r"^[ \t]*(?:source|\.)[ \t]+[\"']?\$\{?1\b", re.M)
SOURCED: Final = MissingFact(
    "the argument $1, a script that it takes its flags from", '--args "…"', "--args flags.sh"
)


def _unread(detection: Detection, text: str, where: object, options: Options | None) -> ReaderError:
    """Return the error of a format that is known and not read."""
    title, (marker, line) = detection.signature.title, detection.markers[-1]
    if detection.name == TITAN:
        error = ReaderError(f"{where}, line {line}", removed(marker.strip(" \t="), TITAN_FIX))
        error.words = options_of_toml(text, where, options or Options())
        return error
    what = f"a file of {title} (its line {line}: {marker})"
    fix = "give MODEL (a name or a config.json), with the layout in --plan or as flags"
    if detection.signature.learns:
        what = f"reinforcement learning with {title}, whose steps train and sample in turn,"
        fix = "give MODEL and the layout of its training step alone"
    return ReaderError(where, wording.not_expressed(what, "", fix))


def _refuse_unknown(text: str, where: object) -> NoReturn:
    """Refuse a file in no known format: name the line of a misspelt key, or the formats that can be read."""
    if isinstance(where, Path) and where.suffix == ".py":
        fix = (
            "neither it nor a module next to it makes a Trainer, TrainingArguments or a loop with backward()"
        )
        raise ReaderError(where, wording.wrong_format("a program that trains", fix))
    for line, row in enumerate(text.splitlines()[:LINES], 1):
        word = re.match(r"""[\s\["'{]*([A-Za-z_]\w{3,})["'\]\s]*(?:[:=]|$)""", row)
        near = get_close_matches(word[1], HALLMARKS, 1, 0.8) if word else []
        if near and word and near[0] not in word[1]:
            raise ReaderError(
                where, wording.unknown_format((), f"its line {line} has {word[1]!r}: did you mean {near[0]}?")
            )
    if (log := format_of(text.splitlines()[:LINES])) is not None:
        fix = f"give the model, and the log with --measured: forescale diagnose MODEL … --measured {where}"
        allowed = f"a configuration: it is a log of {log.title}"
        raise ReaderError(where, wording.wrong_format(allowed, "", fix))
    titles = "; ".join(reader.title for reader in READERS)
    raise ReaderError(where, wording.unknown_format(titles))


TITAN: Final = "torchtitan-toml"
TITAN_FIX: Final = (
    "TOML files of torchtitan 0.2 and earlier are not read; give the Python job configuration of torchtitan 0.3, or "
    "MODEL with --framework torchtitan@0.2 and the layout in flags or --plan"
)


def is_torchtitan_toml(text: str) -> bool:
    """Whether `text` is a job configuration in TOML of torchtitan 0.2 or earlier."""
    return detect(text, TITAN) is not None


def refuse_torchtitan_toml(text: str, where: object, options: Options | None = None) -> None:
    """Refuse a job configuration in TOML of torchtitan 0.2 or earlier.

    Raises
    ------
    ReaderError
        With its line, and what to give instead.
    """
    if detection := detect(text, TITAN):
        raise _unread(detection, text, where, options)


HALLMARKS = (
    "model_type", "architectures", "language_model", "model_parallel", "MODEL_ARGS", "modules", "framework", "extends",
    "num_layers", "hidden_size", "zero_optimization", "train_batch_size", "train_micro_batch_size_per_gpu",
    "per_device_train_batch_size", "output_dir", "compute_environment", "distributed_type", "parallelism", "tokens",
    "model", "training", "flavor", "base_config", "base_emb_dim", "decoder_block", "per_device_batch_size", "peft_type",
)  # fmt: skip
"""Keys that tell formats apart: one that is nearly one of them is why a file is in none."""
