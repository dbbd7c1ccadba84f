"""What every writer of a framework's configuration returns."""

from __future__ import annotations

import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import PurePath
from types import MappingProxyType
from typing import TypeVar

from msgspec import field
from msgspec.structs import replace

from forescale.errors import unsupported_by, wrong_suffix
from forescale.question import Question
from forescale.spec.attention import AttentionKind
from forescale.spec.cluster import Cluster
from forescale.spec.model import Model
from forescale.struct import Struct

T = TypeVar("T", bound=AttentionKind)
PLACEHOLDER = "PLACEHOLDER"
"""Stands in the remark beside everything that only the user knows: data, tokenizer, folders."""
KINDS = {
    ".sh": "a shell script",
    ".py": "Python",
    ".toml": "TOML",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".json": "JSON",
}
"""What files are by how their names end; other endings say nothing."""


class Files(Struct, frozen=True, kw_only=True):
    """A configuration as a framework takes it: one file, or a small folder."""

    texts: Mapping[str, str]
    """Text of each file by its path within the folder."""
    main: str
    """The file that says most; what is projected stands at its head."""
    launch: str
    """The command that trains, run on every node in the folder; `torchrun` below says which variables it may use."""
    beside: tuple[str, ...] = ()
    """What is read back with the main file: for `forescale project MAIN --config BESIDE`."""
    left: tuple[str, ...] = ()
    """Words of a workload that the framework's files never hold, such as "seq_len": the line that reads them back says
    them."""
    comment: str | None = "#"
    """What a comment in the main file starts with; without, a README stands beside it."""
    notes: tuple[str, ...] = ()
    """What to know before it is run, one sentence each."""
    variables: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Environment variables that the launch needs, where the main file cannot set them."""

    @property
    def command(self) -> str:
        """The launch with its variables."""
        before = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return " ".join(["env", *before, self.launch]) if before else self.launch

    @property
    def launched(self) -> dict[str, str]:
        """What the launch's variables say of a layout, in the words of a plan."""
        return {"allocator": "expandable_segments"} if self.variables.items() >= EXPANDABLE.items() else {}

    def renamed(self, name: str) -> Files:
        """Return the one file under another name, which the launch line says too; Python modules go by their stem.

        Raises
        ------
        SpecError
            If the name is that of another kind of file, which neither the framework nor a reader takes.
        """
        check_ending(name, PurePath(self.main).suffix)
        launch = re.sub(
            rf"(?<![\w./-]){re.escape(self.main)}(?![\w./-])", lambda _: shlex.quote(name), self.launch
        )
        module = re.escape(PurePath(self.main).stem)
        launch = re.sub(rf"--module {module}(?!\S)", lambda _: f"--module {PurePath(name).stem}", launch)
        return replace(self, texts={name: self.texts[self.main]}, main=name, launch=launch)


def check_ending(
    name: str, text: str, reader: str = "", others: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Refuse a name of another kind of file than what is written.

    Parameters
    ----------
    own
        How names of what is written end.
    reader
        The framework's release that reads it.
    others
        Endings of what other releases read, by release.
    """
    other = PurePath(name).suffix.lower()
    if other in KINDS and KINDS[other] != KINDS[text]:
        written = f"{reader} reads {KINDS[text]}" if reader else f"what is written is {KINDS[text]}"
        hint = "".join(f"; {KINDS[other]} is for {label}" for label, end in others.items() if end == other)
        raise wrong_suffix("--output", name, (text,), f"{written}{hint}")


EXPANDABLE: Mapping[str, str] = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
"""What PyTorch's allocator is told."""


def allocator(question: Question) -> dict[str, str]:
    """Return the environment variables of the allocator that a layout asks for."""
    return dict(EXPANDABLE) if question.layout.allocator == "expandable_segments" else {}


def filled(framework: str, name: str, /, **words: str) -> str:
    """Return the text of a framework's file with each {{word}} filled in; {{todo}} marks what only the user knows."""
    text = (files("forescale.frameworks") / framework / name).read_text(encoding="utf-8")
    message = {"todo": PLACEHOLDER, **words}
    return re.sub(r"\{\{(\w+)\}\}", lambda result: message[result[1]], text)


class Writer(ABC):
    """Writes one framework's configuration. A new one must pass the laws of tests/export/laws.py."""

    title: str
    """Format that it writes, for people."""
    frameworks: tuple[str, ...]
    """Names of the frameworks' records that it writes for; `--to` takes these and their aliases."""
    no_vision: str = ""
    """Reason that no model with a vision tower is written; empty if some are."""
    endings: Mapping[str, str] = MappingProxyType({})
    """Ending of the name of the one file, by what names of releases start with; empty if it is a folder."""
    several: bool = False
    """Whether some layouts take more files than one."""

    def writes(self, release: str) -> bool:
        """Return whether files of a release are written."""
        return not self.endings or release.startswith(tuple(self.endings))

    @abstractmethod
    def write(self, question: Question) -> Files:
        """Return the configuration of one layout, of which `question.framework` says release and name.

        What the framework has no word for is left out: reading the files back shows it.

        Raises
        ------
        SpecError
            If the framework refuses such a layout; it says which limit.
        """


def first_attention(model: Model, kind: type[T]) -> T | None:
    """Return the first attention of a kind; None if no layer has it."""
    return next((attention for attention in model.attentions if isinstance(attention, kind)), None)


def check_attention(framework: str, model: Model, kinds: Sequence[type[AttentionKind]]) -> None:
    """Refuse a model with a kind of attention that the files of a framework do not describe.

    Raises
    ------
    SpecError
        With the first such attention.
    """
    other = next((attention for attention in model.attentions if type(attention) not in kinds), None)
    if other is not None:
        raise unsupported_by(framework, f"the {other.description} of {model.name}")


RANK, ADDRESS, PORT = "${NODE_RANK:-0}", "${MASTER_ADDR:-localhost}", "${MASTER_PORT:-29500}"
"""Rank of the node, and address and port of the first node, in a launch line of several nodes."""


def nodes_of(cluster: Cluster) -> tuple[int, int]:
    """Return the number of nodes of a cluster, and the devices that a launch uses on each."""
    per_node = min(cluster.devices_per_node, cluster.num_devices)
    return -(-cluster.num_devices // per_node), per_node


def torchrun(cluster: Cluster) -> str:
    """Return the launcher's part of a command; variables give the rank and the first node of several nodes."""
    nodes, per_node = nodes_of(cluster)
    several = f" --node-rank {RANK} --master-addr {ADDRESS} --master-port {PORT}" if nodes > 1 else ""
    return f"torchrun --nproc-per-node {per_node} --nnodes {nodes}{several}"


def variables_of_nodes(cluster: Cluster, address: str = "MASTER_ADDR", port: str = "MASTER_PORT") -> str:
    """Return the variables that a launcher reads; `address` and `port` are its names for those of the first node."""
    nodes, _ = nodes_of(cluster)
    several = f" {address}={ADDRESS} {port}={PORT}" if nodes > 1 else ""
    return f"NNODES={nodes} NODE_RANK={RANK}{several}"
