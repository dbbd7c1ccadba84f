"""Devices that the variables of a command count, where its launcher does not."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from forescale.frameworks.shell import Devices, Launch, Script, devices_of
from forescale.frameworks.trainers.accelerated import content_of, required_file
from forescale.frameworks.trainers.written import table_of
from forescale.limits import whole_of

DEALT: Final = ("auto", "balanced", "balanced_low_0", "sequential")
"""Values of `device_map` that deal the layers of one process to all devices that it sees."""
ALONE: Final = "device_map deals the layers of one process to its devices, of which one works at a time"
PLACED: Final = "device_map, which puts the model on one device"
RANKS: Final = re.compile(r"current_device|process_index|local_rank|LOCAL_RANK")
"""A text with the device of a process."""
OF_RANK: Final = "device_map, which puts the model of a process on its device"


def environment_of(shell: Script, words: Sequence[str]) -> Mapping[str, str]:
    """Return the variables that count the devices of a command."""
    at = next((at for at, command in enumerate(shell.commands) if command is words), None)
    return {} if at is None else {name: value for name, value in shell.environments[at].items() if value}


def variables_of(shell: Script) -> dict[str, str]:
    """Return the variables that a script sets, each as one word."""
    return {name: " ".join(words) for name, words in shell.variables.items()}


def alone(form: str, devices: Devices | None, variables: Mapping[str, str]) -> str:
    """Return why ms-swift starts one process alone on several visible devices; "" where it does not."""
    visible = variables.get("CUDA_VISIBLE_DEVICES", "").count(",") + 1
    if form != "swift" or devices is not None or visible == 1 or "NPROC_PER_NODE" in variables:
        return ""
    return (
        f"NPROC_PER_NODE is not set: one process deals the layers to {visible} visible devices (device_map), "
        "of which one works at a time"
    )


def actor_devices(values: Mapping[str, Any]) -> Devices | None:
    """Return the devices that the flags of OpenRLHF's actor count; None of other programs."""
    for separator in ("_", "."):
        keys = [f"actor{separator}{name}" for name in ("num_nodes", "num_gpus_per_node")]
        counts = [whole_of(str(values.get(key, usual))) for key, usual in zip(keys, (1, 8), strict=True)]
        if any(key in values for key in keys) and all(counts):
            options = tuple(f"--{key} {count}" for key, count in zip(keys, counts, strict=True))
            return Devices(prod(filter(None, counts)), options)
    return None


def split_models(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the warning of processes that see more devices than one each, over which ms-swift splits the model."""
    visible = variables.get("CUDA_VISIBLE_DEVICES", "").count(",") + 1
    processes = whole_of(variables.get("NPROC_PER_NODE", "")) or visible
    if visible <= processes:
        return ()
    return (
        f"NPROC_PER_NODE={processes} on {visible} visible devices: each process splits the model over its devices "
        "(device_map), which is not modelled",
    )


def started_devices(
    shell: Script,
    launch: Launch,
    path: Path,
    variables: Mapping[str, str],
    form: str,
    read_neighbour: Callable[[str], str | None] = lambda _: None,
) -> Devices | None:
    """Return the devices that a command starts its program on; None where others decide them.

    An open number of nodes does, and the `num_processes` of Accelerate's file, which start whatever is visible and
    may be fewer than the devices of a node that a scheduler grants; and the configuration of verl's programs that
    sample, which torchrun does not start.
    """
    if form == "verl" and "torch" not in launch.kinds:
        return None
    config, processes = launch.options.get("--config-file"), None
    if config and "accelerate" in launch.kinds:
        table = table_of(shell.files, config, path) or content_of(required_file(path, config))
        processes = table.get("num_processes")
    if (devices := devices_of(launch, read_neighbour)) is not None:
        granted = launch.count("--nodes") or (1, "")
        is_whole = not processes or "--np" in launch.options or granted[0] > 1 or processes == devices.count
        return devices if is_whole else None
    if processes or ("--nnodes" in launch.options and launch.count("--nnodes") is None):
        return None

    def number(name: str) -> int | None:
        return whole_of(variables.get(name, ""))

    per_node, nodes = number("NPROC_PER_NODE"), number("NNODES")
    if per_node:
        parts = [f"NPROC_PER_NODE={per_node}", *([f"NNODES={nodes}"] if nodes else [])]
        return Devices(per_node * (nodes or 1), tuple(parts))
    visible = variables.get("CUDA_VISIBLE_DEVICES", variables.get("ASCEND_RT_VISIBLE_DEVICES", ""))
    if re.fullmatch(r"\d+(?:,\d+)*", visible) and (form != "swift" or "," not in visible):
        return Devices(visible.count(",") + 1, (f"CUDA_VISIBLE_DEVICES={visible}",))
    return None


def placed_by(device_map: object) -> str:
    """Return what a model's `device_map` does with the devices of a process; "" of one that says nothing."""
    if device_map in DEALT:
        return ALONE
    if isinstance(device_map, dict):
        if not device_map:  # of which nothing is known
            return OF_RANK
        device_map = device_map.get("") if len(device_map) == 1 else None
    return PLACED if re.fullmatch(r"(?:cuda:)?\d+", str(device_map)) else ""


def is_placed(dealt: str, *, by_command: bool) -> bool:
    """Return whether one process has its model on one device, that of its rank where a command starts it alone."""
    return dealt == PLACED or (dealt == OF_RANK and by_command)


def ray_devices(content: Mapping[str, Any]) -> Devices | None:
    """Return the devices of the group of ms-swift's `device_groups` that trains, which Ray starts; None without it."""
    groups = content.get("device_groups")
    tables = (
        [group for group in (groups or {}).values() if isinstance(group, dict)]
        if isinstance(groups, dict)
        else []
    )
    ranks = next((group.get("ranks") for group in tables if "default" in (group.get("workers") or [])), None)
    if isinstance(ranks, list):
        return Devices(len(ranks), ("ranks of device_groups",))
    bounds = re.fullmatch(r"(?:list\()?range\((?:(\d+),\s*)?(\d+)\)\)?", str(ranks))
    return bounds and Devices(int(bounds[2]) - int(bounds[1] or 0), (f"ranks {ranks} of device_groups",))
