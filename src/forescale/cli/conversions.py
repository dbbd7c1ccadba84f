"""Values of other tools' options in our units: epochs as tokens, time between failures as a rate, a link as a tier."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forescale.synonyms import (
    EXAMPLES,
    around_value,
    converted,
    device_field,
    is_hybrid,
    is_per_device,
    meant,
    with_value,
)

SAMPLES = frozenset(
    ("samples", "num_samples", "train_samples", "max_samples", "examples", "num_examples", "dataset_size")
)
STEPS = frozenset(
    (
        "steps",
        "num_steps",
        "max_steps",
        "train_steps",
        "training_steps",
        "total_steps",
        "num_train_steps",
        "iterations",
        "iters",
        "num_iterations",
        "max_iters",
        "max_iterations",
        "train_iters",
    )
)
BATCHES = frozenset(("bs", "bsz", "batch", "batchsize", "batch_size"))
"""Words for a batch that count what a device takes at once where it is accumulated."""
LAID_OUT = frozenset(("project", "memory layout", "fit", "explain"))
"""Commands about one layout, which a device runs without accumulation where a batch of it is all that is given."""
RUN_FILES = frozenset(("--plan", "--config", "--preset"))
"""Options that name a file of a run."""
OF_RUNS = (".yaml", ".yml", ".toml", ".sh", ".slurm", ".sbatch", ".py")
"""Endings of files of runs that are given as the model."""
PREFERENCES = frozenset(("dpo", "ipo"))
"""Switches for methods that compare with a reference model."""
EPOCHS = frozenset(("epochs", "num_epochs", "num_train_epochs", "max_epochs"))
LINKS = frozenset(
    ("bandwidth", "link", "link_bandwidth", "wan", "wan_bandwidth", "site_bandwidth", "interconnect")
)
BACKWARD = frozenset(("backward", "bwd", "backward_time", "bwd_time"))
"""A pass of a schedule that computes both gradients."""
NETWORK = "network"
_BANDWIDTH = re.compile(r"[._-](bandwidth|bw)$")
TIERS = frozenset(("nvlink", "pcie", "infiniband", "roce", "ethernet"))
PER_NODE = frozenset(
    ("nproc_per_node", "gpus_per_node", "num_gpus_per_node", "ntasks_per_node", "devices_per_node")
)
ACCUMULATED = frozenset(
    (
        "ga",
        "gas",
        "accumulation",
        "grad_accumulation",
        "gradient_accumulation",
        "gradient_accumulation_steps",
        "grad_acc",
        "grad_accum",
        "grad_accum_steps",
        "accumulation_steps",
    )
)
ROLES = ("devices", "nodes", "tp", "pp", "cp", "micro_batch_size", "global_batch_size")
"""Of options, which say how many sequences a step has."""
_COUNT = re.compile(r"(\d+(?:[._]\d+)*)([kKmMbBtT]?)", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d*)?|\.\d+", re.ASCII)
_SCALES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)?", re.ASCII)
_WITH_UNIT = re.compile(r"\d+(?:\.\d+)?\s*(s|min|m|h|d)", re.ASCII)
_HOURS = {"s": 1 / 3600, "min": 1 / 60, "m": 1 / 60, "h": 1.0, "d": 24.0}
_FACTOR = re.compile(r"x\d+(?:\.\d+)?|\d+(?:\.\d+)? ?[GT]B/s", re.ASCII)
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:G|Gb|Gbps|Gbit|Gb/s|Gbit/s|GbE)", re.ASCII)
LEAST_FAILURES = 1e-4
"""Failures of a node and day below which a time between them is one device's: 40 times fewer than Llama 3's run had."""


def _plain(name: str) -> str:
    return name.strip("-").replace("-", "_").lower()


def counted_devices(values: Mapping[str, str]) -> tuple[str, tuple[str, ...]] | None:
    """Return the option whose value counts the devices of a cluster, such as 8xh100, and ours for it.

    None where no value does, or another option counts them. `values` are those of all options of a command line.
    """
    roles = {name: meant(name, ("cluster", "devices", "nodes")) for name in values}
    named = {
        name for name, role in roles.items() if role in ("cluster", "devices") and not values[name].isdigit()
    }
    others = {name for name, role in roles.items() if role in ("devices", "nodes")} - named
    if len(named) != 1 or others:
        return None
    from forescale.catalogue.clusters import counted_cluster

    [name] = named
    cluster, count = counted_cluster(values[name]) or ("", "")
    return (name, ("--cluster", cluster, "--devices", count)) if count else None


def trained_tokens(values: Mapping[str, str]) -> tuple[set[str], tuple[str, ...]] | None:
    """Return the tokens of a run of epochs or steps, and the options that say so; None where that is open.

    `values` are those of all options of a command line. What the tokens need and no option gives, the length of a
    sequence or the batch, is that of examples, and among the words.
    """
    counts: dict[str, tuple[str, float]] = {}
    for name, text in values.items():
        role = _role(_plain(name))
        if role is not None and (number := _count(text)) is not None:
            counts[role] = (name, number)
    replaced = {role: counts[role] for role in ("epochs", "samples", "tokens", "steps") if role in counts}
    needed: tuple[str, ...]
    if "tokens" in counts:
        needed = ("tokens",)
    else:
        needed = ("steps", "global_batch_size", "seq_len") if "steps" in counts else ("samples", "seq_len")
    if not replaced.keys() & {"epochs", "samples", "steps"} or needed[0] not in counts:
        return None
    assumed = {role: int(EXAMPLES[role]) for role in needed if role not in counts}
    total = math.prod(counts[role][1] for role in {*needed, "epochs"} & counts.keys())
    total *= math.prod(assumed.values())
    words = (word for role, count in assumed.items() for word in (f"--{role.replace('_', '-')}", f"{count}"))
    return {name for name, _ in replaced.values()}, ("--tokens", f"{round(total)}", *words)


def _role(name: str) -> str | None:
    """Return what an option counts of a run: epochs, samples, steps, tokens of a sample or of the run."""
    for role, words in (("epochs", EPOCHS), ("samples", SAMPLES), ("steps", STEPS)):
        if name in words:
            return role
    return meant(name, {"seq_len", "tokens", "global_batch_size"}) or name


def _count(text: str) -> float | None:
    match = _COUNT.fullmatch(text)
    return None if match is None else float(match[1].replace("_", "")) * _SCALES[match[2].lower()]


def is_time(text: str) -> bool:
    """Return whether a text is a time with its unit, such as 3d."""
    return _WITH_UNIT.fullmatch(text) is not None


def is_accumulated(names: Iterable[str]) -> bool:
    """Return whether options accumulate a batch that none of them calls that of a device."""
    roles = {_plain(name) for name in names}
    return bool(roles & ACCUMULATED) and not any(
        meant(name, {"micro_batch_size"}) for name in roles - ACCUMULATED
    )


def in_context(
    name: str,
    values: Mapping[str, str],
    path: str,
    options: Collection[str],
    held: Collection[str],
    *,
    has_file: bool = False,
) -> tuple[str, ...] | None:
    """Return the options that another tool's option is for its value or next to others; None if it is none of those.

    Where one option is returned alone, the value follows it. `values` are those of all options of the command line,
    `options` those of the command, and `held` the dimensions that a search holds with --fix. A file of a run may say
    how many devices there are.
    """
    plain, value = _plain(name), values[name]
    if plain in BATCHES and "--micro-batch-size" in options:
        if is_accumulated(values):
            return ("--micro-batch-size",)
        if path in LAID_OUT and value.isdecimal() and not has_file and _is_one_device(values):
            return ("--micro-batch-size", value, "--global-batch-size", value)
    if value[:1].isalpha() and meant(name, {"devices"}) and "--cluster" in options:
        return ("--cluster",)
    if plain in PREFERENCES and any(meant(key, {"lora_rank"}) for key in values):
        return ("--set", "workload.reference=shared")  # the model without its adapters
    dimension = meant(plain.removeprefix("max_"), held) if plain.startswith("max_") else None
    if dimension is not None and "--fix" in options and value.isdecimal():
        powers = (2**place for place in range(int(value).bit_length()))
        return ("--fix", f"{dimension}={','.join(map(str, powers))}")
    if value[:1] == "-" and len(several := (with_value(name) or "").split()) > 2:
        pairs = zip(several[::2], several[1::2], strict=True)
        return tuple(word for pair in pairs if pair[0] in {*options} - values.keys() for word in pair)
    words = tuple((around_value(name, value) or "").split())
    return words if words and {word for word in words if word[:2] == "--"} <= {*options} else None


def is_with_file(words: Sequence[str]) -> bool:
    """Return whether words of a command name a file of a run, which may say how many devices there are."""
    given = {word.partition("=")[0] for word in words}
    return bool(given & RUN_FILES) or any(
        Path(word).suffix.lower() in OF_RUNS and Path(word).is_file() for word in words
    )


def _is_one_device(values: Mapping[str, str]) -> bool:
    """Return whether options ask about one device, whose batch is not called that of a micro-batch."""
    roles = {meant(name, ROLES): value for name, value in values.items()}
    alone = (
        roles.get("devices", "1") == "1"
        and not {"nodes", "tp", "pp", "cp", "micro_batch_size"} & roles.keys()
    )
    if not alone or counted_devices(values) is not None:
        return False
    from forescale.catalogue.clusters import instance_of

    return (instance_of(roles.get("cluster", "")) or ("", 1))[1] == 1


def failure_rate(text: str, values: Mapping[str, str]) -> str | None:
    """Return the failures of a node and day where the job fails once in a time; None where that is open.

    A time in which no job of so many nodes stays whole (`LEAST_FAILURES`) is that of one device.
    """
    time = _TIME.fullmatch(text)
    counts = {_plain(name): int(value) for name, value in values.items() if value.isdecimal()}
    devices = next(
        (count for name, count in counts.items() if name == "devices" or meant(name, {"devices"})), 0
    )
    nodes = counts.get("nodes", devices / (_devices_per_node(values) or math.inf))
    if time is None or not nodes or not float(time[1]):
        return None
    daily = 24.0 / (float(time[1]) * _HOURS[time[2] or "h"])
    per_node = _devices_per_node(values) or 0
    return f"{daily * per_node if per_node and daily / nodes < LEAST_FAILURES else daily / nodes:.3g}"


def _cluster(values: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the catalogue's entry of the cluster that options name; None where they name none, or a file."""
    from forescale.catalogue.clusters import cluster_record
    from forescale.errors import SpecError

    name = next((value for key, value in values.items() if _plain(key) in ("cluster", "gpu")), None)
    try:
        return None if name is None else cluster_record(name)
    except SpecError:
        return None


def _devices_per_node(values: Mapping[str, str]) -> int:
    """Return the devices of a node of the cluster that options name; 0 where that is open."""
    record = _cluster(values)
    return 0 if record is None else int(record["devices_per_node"])


def tier_bandwidth(option: str, text: str, values: Mapping[str, str]) -> str | None:
    """Return a network's rates, such as 100G,400G, as values of a tier of a cluster; None where that is open.

    The tier is the one that the option names, such as --nvlink-bandwidth, else the outermost.
    """
    record = _cluster(values)
    if record is None or not (rates := [_rate(item.strip()) for item in text.split(",")]) or None in rates:
        return None
    tiers = [str(tier["name"]) for tier in record["tiers"]]
    tier = next((tier for tier in tiers if _plain(option).startswith(tier)), tiers[-1])
    return f"cluster.tiers.{tier}.bandwidth={','.join(map(str, rates))}"


def network_rates(option: str, text: str, values: Mapping[str, str]) -> str | None:
    """Return what `tier_bandwidth` does for options that name a network, and for --vary network=400G,200G."""
    if option == "--vary":
        option, _, text = text.partition("=")
    elif meant(option, {"cluster"}) != "cluster" and not option.endswith(("bandwidth", "-bw")):
        return None
    return tier_bandwidth(option, text, values)


def names_link(name: str, text: str) -> bool:
    """Return whether a name and its values are rates of a network, such as network=400G,200G."""
    return is_network(name) and None not in map(_rate, text.split(","))


def is_network(name: str) -> bool:
    """Return whether others call the network of a cluster, or a link of it, so; with or without its bandwidth."""
    name = _BANDWIDTH.sub("", name)
    return converted(name) == converted(NETWORK) or device_field(name) in TIERS


def _rate(text: str) -> str | None:
    """Return a rate in bytes, or a factor such as x0.5; None if it is none."""
    if _FACTOR.fullmatch(text):
        return text.replace(" ", "")
    bits = _RATE.fullmatch(text)
    return None if bits is None else f"{float(bits[1]) / 8:g}GB/s"


def wide_area_link(name: str, text: str) -> str | None:
    """Return two sites and the rate of the link between them, such as --bandwidth 800Gbps; None if it is none."""
    rate = _RATE.fullmatch(text)
    return None if rate is None or _plain(name) not in LINKS else f"2,{rate[1]}Gbit/s,30ms"


def halves(name: str, text: str) -> tuple[str, ...] | None:
    """Return a whole backward as its two halves, such as --backward 2; None if the option is another one."""
    if _plain(name) not in BACKWARD or not _NUMBER.fullmatch(text):
        return None
    half = f"{float(text) / 2:g}"
    return "--input-grad", half, "--weight-grad", half


def all_devices(name: str, text: str, values: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return what the devices of a node are: all of them where no others are given; None if the option is another one.

    Next to nodes or devices they are the size of a node, and nothing where the cluster has nodes of that size.
    """
    if _plain(name) not in PER_NODE or not text.isdecimal():
        return None
    others = {_plain(key) for key in values} - PER_NODE
    if not any(key in ("nodes", "devices") or meant(key, {"nodes", "devices"}) for key in others):
        return ("--devices", text)
    usual = _devices_per_node(values)
    return () if usual in (0, int(text)) else ("--set", f"cluster.devices_per_node={text}")


def accumulated(name: str, values: Mapping[str, str]) -> tuple[tuple[str, ...], bool] | None:
    """Return the global batch of a micro-batch that is accumulated, and whether the devices are given; None if open.

    Without devices it is that of one device, and the words say so. The batch of a device is accumulated once unless
    the command says otherwise. Next to a global batch it is the micro-batch that is returned.
    """
    counts = {_plain(key): int(text) for key, text in values.items() if text.isdecimal()}
    roles: dict[str, int] = {}
    is_of_device = is_accumulated(values)
    for key, count in counts.items():
        role = key if key in ACCUMULATED else meant(key, ROLES)
        if is_of_device and key in BATCHES:
            role = "micro_batch_size"
        if role is not None:
            roles["steps" if role in ACCUMULATED else role] = count
    if is_per_device(name) and "steps" not in roles:
        roles["steps"] = 1
    elif _plain(name) not in ACCUMULATED:
        return None
    if "steps" not in roles or not {"micro_batch_size", "global_batch_size"} & roles.keys():
        return None
    degree = roles.get("tp", 1) * roles.get("pp", 1) * roles.get("cp", 1)
    per_node = _devices_per_node(values) if "nodes" in roles else 1
    devices = roles.get("devices", roles.get("nodes", 0) * per_node)
    if not (per_node or "devices" in roles) or (devices or degree) % degree or (degree > 1 and not devices):
        return None
    if "global_batch_size" in roles:
        ranks = devices // degree * roles["steps"]
        divides = ranks and "micro_batch_size" not in roles and not roles["global_batch_size"] % ranks
        return (("--micro-batch-size", f"{roles['global_batch_size'] // ranks}"), True) if divides else None
    batch = roles["micro_batch_size"] * roles["steps"] * max(1, devices // degree)
    alone = () if devices else ("--devices", "1")
    return ("--global-batch-size", f"{batch}", *alone), "devices" in roles


def batch_per_device(
    values: Mapping[str, str], lacked: Sequence[str], read: dict[str, str]
) -> tuple[str, ...]:
    """Return the global batch where a batch of each device is given alone, as Hugging Face's Trainer counts it.

    `read` gets what the option is read as.
    """
    if "--global-batch-size" not in lacked:
        return ()
    batches = (accumulated(name, values) for name in values if is_per_device(name))
    batch: tuple[str, ...] = next((words[:2] for words, _ in filter(None, batches)), ())
    added = f" and {' '.join(batch)}" if batch else ""
    read |= {name: f"{text}{added}" for name, text in read.items() if is_per_device(name)}
    return batch


def replicas(name: str, values: Mapping[str, str]) -> str | None:
    """Return the replicas of hybrid sharding, one of each node; None where the devices are open or the name another."""
    if not (is_hybrid(name) or is_hybrid(values[name])):
        return None
    counts = {_plain(key): int(text) for key, text in values.items() if text.isdecimal()}
    devices = next((count for key, count in counts.items() if meant(key, {"devices"}) == "devices"), 0)
    usual = devices // (_devices_per_node(values) or devices + 1)
    nodes = next((count for key, count in counts.items() if meant(key, {"nodes"}) == "nodes"), usual)
    return f"{nodes}" if nodes > 1 else None
