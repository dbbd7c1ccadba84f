"""What launchers and schedulers of jobs say of devices: Slurm, PBS, torchrun, mpirun, deepspeed and accelerate."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import field

from forescale.limits import whole_of
from forescale.struct import Struct

HEADERS: Final = ("#SBATCH", "#PBS")
"""Comments whose words are options of the scheduler."""
SLURM: Final = ("sbatch", "srun", "salloc")
MPI: Final = ("mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun")
TORCH: Final = ("torchrun", "torch.distributed.run", "torch.distributed.launch")
PER_NODE, NODES, TASKS, TASKS_PER_NODE = "--nproc-per-node", "--nnodes", "--ntasks", "--ntasks-per-node"
GPUS, GPUS_PER_NODE, GPUS_PER_TASK, GRES = "--gpus", "--gpus-per-node", "--gpus-per-task", "--gres"
HOSTFILE: Final = "--hostfile"
MOST: Final = 64
"""Devices of a node."""
SETS: Final = "--nrs"
"""Resource sets of jsrun, each with tasks and devices."""
RESOURCES: Final = "-l"
"""PBS' option, which may be given several times."""
SHORT: Final[Mapping[str, Mapping[str, str]]] = {
    "slurm": {"-N": "--nodes", "-n": TASKS, "-G": GPUS, "-c": "--cpus-per-task", "-J": "--job-name"},
    "mpi": {
        **dict.fromkeys(("-np", "-n", "-c", "--np", "--n"), "--np"),
        **dict.fromkeys(("-npernode", "--npernode", "-ppn", "--ppn", "-N", "-perhost"), "--npernode"),
        **dict.fromkeys(("-hostfile", "--machinefile", "-machinefile", "-f"), HOSTFILE),
    },
    "deepspeed": {"-H": HOSTFILE, "-i": "--include", "--num-gpus": PER_NODE, "--num-nodes": NODES},
    "accelerate": {"--num-processes": "--np", "--num-machines": NODES},
    "torch": {},
    "mindspore": {"--worker-num": "--np"},
    "lsf": {"-n": SETS, "--nrs": SETS, "-a": "--tasks-per-rs", "-g": "--gpu-per-rs", "-p": "--np"},
    "alps": {"-n": TASKS, "-N": TASKS_PER_NODE, "--pes": TASKS, "--pes-per-node": TASKS_PER_NODE},
    "flux": {"-N": "--nodes", "-n": TASKS, "-T": TASKS_PER_NODE, "-g": GPUS_PER_TASK},
}
"""Options by the name that they have here, of each kind of launcher."""


class Launch(Struct, frozen=True):
    """Options of all launchers that start a program; inner ones count over outer ones."""

    options: Mapping[str, str] = field(default_factory=dict)
    kinds: frozenset[str] = frozenset()
    """Kinds of launchers, as in `SHORT`."""
    spelling: Mapping[str, str] = field(default_factory=dict)
    """How each option was written."""

    def count(self, *names: str) -> tuple[int, str] | None:
        """Return the first of some options that is a number, and how it was written; None where none is."""
        for name in names:
            number = whole_of(self.options.get(name, "").rsplit(":", 1)[-1].removeprefix("gpu="))
            if number:
                return number, name
        return None


class Devices(Struct, frozen=True):
    """How many devices a script asks for, and the options that say so, as they were written."""

    count: int
    options: tuple[str, ...]
    conflict: tuple[str, str] | None = None
    """An option of the launcher that asks for more than one of the scheduler gives, and that one."""


def launch_of(names: Sequence[str]) -> Launch:
    """Return the options among the words that stand before a program."""
    options: dict[str, str] = {}
    spelling: dict[str, str] = {}
    kinds: list[str] = []
    name = ""
    for word in names:
        kind = _kind(word)
        if kind is not None:
            kinds, name = [*kinds, kind], ""
            continue
        flag, equals, value = word.partition("=")
        if flag.startswith("-") and not flag.lstrip("-")[:1].isdigit():
            plain = flag.replace("_", "-")
            name = SHORT[kinds[-1] if kinds else "slurm"].get(plain, plain)
            spelling[name] = flag
            options[name] = value if equals else options.get(name, "") if name == RESOURCES else ""
        elif name == RESOURCES:
            options[name] += f",{word}"
        elif name and not options[name]:
            options[name] = word
    derived = {**_of_pbs(options, spelling), **_of_tasks(options), **_of_sets(options, spelling)}
    return Launch({**derived, **options}, frozenset(kinds), spelling)


def _of_tasks(options: Mapping[str, str]) -> dict[str, str]:
    """Return the devices of a node, where Slurm gives those of a task and the tasks of a node."""
    tasks, gpus = (whole_of(options.get(name, "")) for name in (TASKS_PER_NODE, GPUS_PER_TASK))
    return {GPUS_PER_NODE: str(tasks * gpus)} if tasks and gpus else {}


def _of_sets(options: Mapping[str, str], spelling: dict[str, str]) -> dict[str, str]:
    """Return the processes of jsrun's resource sets, one for each device or task of a set."""
    sets, *each = (whole_of(options.get(name, "")) for name in (SETS, "--tasks-per-rs", "--gpu-per-rs"))
    if not sets or options.get("--np"):
        return {}
    spelling["--np"] = f"{spelling[SETS]} {sets} x tasks or devices of a set ="
    return {"--np": str(sets * max(count or 1 for count in each))}


def _kind(word: str) -> str | None:
    """Return the kind of launcher that a word starts; None where it starts none."""
    bare = word.rsplit("/", 1)[-1]
    table = {**dict.fromkeys(SLURM, "slurm"), **dict.fromkeys(MPI, "mpi"), **dict.fromkeys(TORCH, "torch")}
    others = {
        **dict.fromkeys(("deepspeed", "colossalai"), "deepspeed"),
        "accelerate": "accelerate",
        "msrun": "mindspore",
        "jsrun": "lsf",
        "aprun": "alps",
        **dict.fromkeys(("flux", "lrun"), "flux"),
        "ibrun": "alps",
        "yhrun": "slurm",
    }
    return {**table, **others}.get(bare)


def _of_pbs(options: Mapping[str, str], spelling: dict[str, str]) -> dict[str, str]:
    """Return PBS' resources (-l select=4:ngpus=8:mpiprocs=8, -l nodes=4:ppn=8) as the options that say the same."""
    text, result = options.get(RESOURCES, ""), {}
    for name, pattern in (
        ("--nodes", r"\b(?:select|nodes)=(\d+)"),
        (GPUS_PER_NODE, r"\b(?:ngpus|gpus)=(\d+)"),
        (TASKS_PER_NODE, r"\bmpiprocs=(\d+)"),
    ):
        if (match := re.search(pattern, text)) is not None:
            result[name] = match[1]
            spelling.setdefault(name, match[0].partition("=")[0])
    return result


def devices_of(
    launch: Launch, read_neighbour: Callable[[str], str | None] = lambda _: None
) -> Devices | None:
    """Return the devices that a program is started on, one process for each; None where that cannot be known.

    `read_neighbour` returns the text of a hostfile by its name.
    """
    nodes, per_node = launch.count(NODES, "--nodes"), _per_node(launch)
    if (whole := _processes(launch, read_neighbour)) is not None:
        return whole
    if per_node is not None and PER_NODE in launch.options and NODES not in launch.options:
        nodes = nodes or (1, "")
    if per_node is None or nodes is None:
        return None
    if nodes[0] > 1 and "deepspeed" in launch.kinds and not {HOSTFILE, NODES} & launch.options.keys():
        local = (*_spelt(launch, (per_node[1],)), "1 node (deepspeed without --hostfile)")
        return Devices(per_node[0], local)
    named = tuple(_spelt(launch, (nodes[1], per_node[1])))
    return Devices(per_node[0] * nodes[0], named, _conflict(launch))


def _conflict(launch: Launch) -> tuple[str, str] | None:
    """Return options of torchrun and the scheduler of which the first asks for more nodes or devices."""
    for inner, outer in ((NODES, ("--nodes",)), (PER_NODE, (GPUS_PER_NODE, GRES))):
        asked, granted = launch.count(inner), launch.count(*outer)
        if asked is not None and granted is not None and asked[0] > granted[0]:
            first, second = _spelt(launch, (asked[1], granted[1]))
            return first, second
    return None


def _processes(launch: Launch, read_neighbour: Callable[[str], str | None]) -> Devices | None:
    """Return the processes that a launcher counts over all nodes."""
    if "torch" in launch.kinds:
        return None
    if included := re.findall(r":([\d,]+)", launch.options.get("--include", "")):
        return Devices(sum(item.count(",") + 1 for item in included), tuple(_spelt(launch, ("--include",))))
    if (whole := launch.count("--np")) is not None:
        return Devices(whole[0], tuple(_spelt(launch, (whole[1],))))
    slots = re.findall(
        r"^[ \t]*[^#\s].*\bslots=(\d{1,7})", read_neighbour(launch.options.get(HOSTFILE, "")) or "", re.M
    )
    if slots and not {PER_NODE, "--npernode"} & launch.options.keys():
        return Devices(sum(map(int, slots)), tuple(_spelt(launch, (HOSTFILE,))))
    tasks, gpus = launch.count(TASKS), launch.count(GPUS)
    nodes = launch.count("--nodes")
    if tasks is None or launch.kinds & {"mpi", "deepspeed", "accelerate"}:
        return None
    alone = nodes is not None and tasks[0] == nodes[0] and launch.count(GPUS_PER_NODE, GRES) is not None
    if alone or (gpus is not None and gpus[0] > tasks[0]):
        return None if alone or gpus is None else Devices(gpus[0], tuple(_spelt(launch, (gpus[1],))))
    return Devices(tasks[0], tuple(_spelt(launch, (tasks[1],))))


def _per_node(launch: Launch) -> tuple[int, str] | None:
    """Return the devices of a node: what torchrun starts there, else tasks, unless one task has several devices."""
    count = launch.count(PER_NODE if PER_NODE in launch.options else "--npernode")
    gpus = launch.count(GPUS_PER_NODE, GRES)
    tasks = launch.count(TASKS_PER_NODE)
    if count is not None:
        return count
    if tasks is not None and not (gpus is not None and tasks[0] == 1):
        return tasks if PER_NODE not in launch.options else gpus or (tasks if tasks[0] > 1 else None)
    return gpus


def _spelt(launch: Launch, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        if name:
            yield f"{launch.spelling.get(name, name)} {launch.options[name]}"


def slurm_variables(names: Sequence[str]) -> dict[str, str]:
    """Return the variables that Slurm sets for a job, and for srun, with the options among `names`."""
    launch = launch_of(names)
    nodes, tasks = launch.count("--nodes"), launch.count(TASKS)
    item, gpus = launch.count(TASKS_PER_NODE), launch.count(GPUS_PER_NODE, GRES)
    count = tasks[0] if tasks else item[0] * nodes[0] if item and nodes else nodes[0] if nodes else None
    if gpus is None and nodes and (all_of := launch.count(GPUS)) and all_of[0] % nodes[0] == 0:
        gpus = all_of[0] // nodes[0], ""
    whole = launch.count(GPUS) or (gpus and nodes and (gpus[0] * nodes[0], ""))
    values: dict[str, int | str | None] = {
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes and nodes[0]),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), count),
        **dict.fromkeys(("SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"), item and item[0]),
        **dict.fromkeys(("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), gpus and gpus[0]),
        "SLURM_GPUS": whole and whole[0],
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus[0]))) if gpus and gpus[0] <= MOST else None,
        "SLURM_CPUS_PER_TASK": launch.options.get("--cpus-per-task"),
        "SLURM_JOB_NAME": launch.options.get("--job-name"),
    }
    return {name: str(value) for name, value in values.items() if value}


def header_words(text: str) -> list[str]:
    """Return the scheduler's options that stand in the comments at the head of a script."""
    names: list[str] = []
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break
        if (header := next((item for item in HEADERS if line.startswith(item)), None)) is not None:
            names += line[len(header) :].split(" #")[0].split()
    return names
