"""Every reader of a framework's configuration, and finding the right one by a file's content."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from forescale.errors import ReaderError
from forescale.files import read_text
from forescale.frameworks.bridge.reader import BridgeReader
from forescale.frameworks.deepspeed.accelerate import AccelerateReader
from forescale.frameworks.deepspeed.reader import DeepSpeedReader
from forescale.frameworks.deepspeed.trainer import TrainerReader
from forescale.frameworks.huggingface import load_huggingface
from forescale.frameworks.huggingface.adapter import AdapterReader
from forescale.frameworks.maxtext.reader import MaxTextReader
from forescale.frameworks.megatron import MegatronReader
from forescale.frameworks.nanotron.reader import NanotronReader
from forescale.frameworks.primus.reader import PrimusReader
from forescale.frameworks.reading import Options, Reader, Reading
from forescale.frameworks.torchtitan.reader import TorchtitanJobReader, TorchtitanTomlReader


class HuggingFaceReader:
    """The `config.json` of a Hugging Face model: a model, no layout."""

    name: Final = "huggingface"
    title: Final = "Hugging Face config.json"

    def recognises(self, text: str) -> bool:
        """Whether `text` is JSON with an architecture's key."""
        return text.lstrip().startswith("{") and ('"model_type"' in text or '"architectures"' in text)

    def read(self, path: Path, options: Options) -> Reading:  # noqa: ARG002  (nothing is left open)
        """Return the model at `path`."""
        found = load_huggingface(path)
        return Reading(format=self.name, model=found.model, ignored=found.ignored)


READERS: tuple[Reader, ...] = (
    HuggingFaceReader(),
    MegatronReader(),
    PrimusReader(),
    DeepSpeedReader(),
    TrainerReader(),
    AccelerateReader(),
    NanotronReader(),
    TorchtitanTomlReader(),
    TorchtitanJobReader(),
    MaxTextReader(),
    BridgeReader(),
    AdapterReader(),
)
"""All readers; a new one is added here and must pass `check_reader` (tests/conformance)."""


def read_file(path: str | Path, options: Options | None = None) -> Reading:
    """Return what a framework's configuration file says, in whichever known format it is.

    Raises
    ------
    ReaderError
        If no reader knows the format; the message lists those that can be read.
    """
    file = Path(path)
    if file.is_dir():
        return HuggingFaceReader().read(file, options or Options())
    return reader_of(read_text(file), file).read(file, options or Options())


def is_bare_model(path: Path) -> bool:
    """Return whether a path is a model alone: a folder, or JSON that is no arguments of a trainer or adapters."""
    if path.suffix != ".json" or not path.is_file():
        return path.suffix == ".json" or path.is_dir()
    text = read_text(path)
    return not (TrainerReader().recognises(text) or AdapterReader().recognises(text))


LEARNERS: Mapping[str, re.Pattern[str]] = {
    "verl": re.compile(r"^\s*actor_rollout_ref[.:]|\bverl\.trainer\.", re.MULTILINE),
    "OpenRLHF": re.compile(r"\bopenrlhf\.(?:cli|trainer)\b"),
    "NeMo RL": re.compile(r"^grpo:[^\0]*^policy:|^policy:[^\0]*^grpo:|\bnemo_rl\.", re.MULTILINE),
    "slime": re.compile(r"--rollout-num-gpus\b|--actor-num-gpus-per-node\b"),
}
"""What configurations of reinforcement learning hold, by framework."""


def reader_of(text: str, where: object) -> Reader:
    """Return the reader that recognises `text`."""
    for name, hallmark in LEARNERS.items():
        if hallmark.search(text):
            problem = (
                f"it is of reinforcement learning with {name}, whose steps train and sample in turn: "
                "out of scope; give MODEL and the layout of its training step alone"
            )
            raise ReaderError(where, problem)
    for reader in READERS:
        if reader.recognises(text):
            return reader
    titles = "; ".join(reader.title for reader in READERS)
    raise ReaderError(where, f"its format is not known; what can be read: {titles}")
