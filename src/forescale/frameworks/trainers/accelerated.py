"""What `accelerate launch` says of a training, in its file or its options, and the files that commands name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from forescale import wording
from forescale.errors import ReaderError
from forescale.files import read_text
from forescale.frameworks.deepspeed.trainer import TABLES, AccelerateReader
from forescale.frameworks.reading import Options, ParsedFile
from forescale.frameworks.settings import Settings
from forescale.frameworks.shell import Launch, launch_of
from forescale.frameworks.trainers.run import STEPS, found_by_end
from forescale.frameworks.trainers.written import table_of
from forescale.syntax import deep_merge, parse_mapping, parse_yaml


def accelerated(
    launch: Launch, path: Path, options: Options, files: Mapping[str, str] = MappingProxyType({})
) -> ParsedFile | None:
    """Return what `accelerate launch` says in its file or its options; None if it shards nothing.

    A number of processes that a variable leaves open comes before that of its file.
    """
    parsed = _read(launch, path, options, files)
    is_open = "--np" in launch.options and launch.count("--np") is None
    counts = options.num_devices is not None or ("--config-file" in launch.options and not is_open)
    return parsed if parsed is None or counts else replace(parsed, num_devices=None)


def launched(
    words: Sequence[str], path: Path, options: Options, files: Mapping[str, str] = MappingProxyType({})
) -> Launch:
    """Return the options of a command, without a file that is not there where another is given in its place."""
    launch = launch_of(words)
    name = launch.options.get("--config-file")
    if (
        options.launch is None
        or name is None
        or table_of(files, name, path)
        or found_by_end(path.parent, name)
    ):
        return launch
    return replace(
        launch, options={key: value for key, value in launch.options.items() if key != "--config-file"}
    )


def _read(launch: Launch, path: Path, options: Options, files: Mapping[str, str]) -> ParsedFile | None:
    words = _words(launch)
    if (config := launch.options.get("--config-file")) is None:
        return _inline(launch, words, path, options)
    words = words if "accelerate" in launch.kinds else {}
    if (table := table_of(files, config, path)) is not None:
        return AccelerateReader().read_content(deep_merge(dict(table), words), {}, path, options)
    return AccelerateReader().read(required_file(path, config), options, words)


def _words(launch: Launch) -> dict[str, Any]:
    """Return the options of `accelerate launch` as its file has them, in the tables that they stand in there."""
    flags = {name[2:].replace("-", "_"): value for name, value in launch.options.items()}
    counts = {"num_processes": launch.count("--np"), "num_machines": launch.count("--nnodes")}
    content: dict[str, Any] = {key: count[0] for key, count in counts.items() if count is not None}
    for table, keys in TABLES.items():
        inside = {key: plain(flags[key]) for key in keys if key in flags}
        content |= {table: inside} if table and inside else inside
    return content


def _inline(launch: Launch, words: Mapping[str, Any], path: Path, options: Options) -> ParsedFile | None:
    """Return what options of `accelerate launch` say without a file; None if they shard nothing."""
    given = {name[2:].replace("-", "_") for name in launch.options}
    kinds = {"DEEPSPEED": ("use_deepspeed", "deepspeed_config_file"), "FSDP": ("use_fsdp",)}
    kind = next((kind for kind, names in kinds.items() if not given.isdisjoint(names)), None)
    if "accelerate" not in launch.kinds or kind is None:
        return None
    return AccelerateReader().read_content({"distributed_type": kind, **words}, {}, path, options)


def content_of(file: Path) -> Mapping[str, Any]:
    """Return the content of a file of YAML or JSON."""
    return parse_mapping(read_text(file), file, parse_yaml)


def plain(word: str) -> Any:  # noqa: ANN401  (a value of YAML)
    """Return a word of a command as YAML has it: truth values and nothing as such."""
    return {"true": True, "false": False, "none": None, "null": None}.get(word.lower(), word)


def required_file(path: Path, name: str) -> Path:
    """Return a file that a command names; a folder that depends on where it runs is the script's."""
    if (file := found_by_end(path.parent, name)) is None:
        raise ReaderError(
            path,
            wording.not_found(f"file {name}", "put it next to the script, or give its like by --config FILE"),
        )
    return file


def lay_kernels(settings: Settings, layout: dict[str, Any], workload: dict[str, Any]) -> None:
    """Lay what FSDP and an optimizer of single kernels do."""
    if layout["zero"] >= 2:
        _lay_sharded(settings, layout, workload)
    if settings.text("optim") == "adamw_torch":
        layout["kernels"] = {**layout.get("kernels", {}), "fused_update": False, "updates_together": True}


def _lay_sharded(settings: Settings, layout: dict[str, Any], workload: dict[str, Any]) -> None:
    """Lay what FSDP does under accelerate: gradients in fp32, which add up unsharded over micro-batches (no_sync)."""
    types = workload["precision"]
    if types["compute"] in ("bf16", "fp16"):
        workload["precision"] = {"gradients": "fp32", **types}
    if settings.size(STEPS, 1) > 1 and "sync_each_batch" not in str(settings.get("accelerator_config")):
        layout["kernels"] = {**layout.get("kernels", {}), "keeps_whole_gradients": True}
        settings.note(
            "FSDP adds up whole gradients over micro-batches (no_sync) unless sync_each_batch is set"
        )
    if workload.get("trainable"):
        _lay_adapters(settings, layout)


def _lay_adapters(settings: Settings, layout: dict[str, Any]) -> None:
    """Lay what FSDP keeps of frozen layers, which FSDP2 and checkpoints without reentry do not."""
    reentrant = "use_reentrant': False" not in str(settings.get("gradient_checkpointing_kwargs"))
    second = "fsdp_version': 2" in str(settings.get("fsdp_config")) or settings.count("fsdp_version") == 2
    if reentrant and not second:
        layout["kernels"] = {"keeps_layer_inputs": True, **layout.get("kernels", {})}
