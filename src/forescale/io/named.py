"""Models and clusters from one text: a catalogue name, or a file in any format that can be read."""

from __future__ import annotations

from pathlib import Path

from forescale.catalogue.clusters import cluster_names, load_cluster
from forescale.catalogue.models import load_model, model_names
from forescale.errors import ReaderError
from forescale.files import place_of
from forescale.frameworks.huggingface import load_huggingface
from forescale.io.cluster import read_cluster_file
from forescale.io.validation import checked_model
from forescale.spec import Cluster, Model

_SUFFIXES = frozenset({".json", ".toml", ".yaml", ".yml", ".sh", ".txt"})


def model_of(text: str, *, folder: Path | None = None) -> Model:
    """Return the model that `text` means: a catalogue name, or a file or folder that describes one.

    Raises
    ------
    UnknownNameError
        If it is neither; the message names the nearest catalogue models.
    ReaderError
        If it is a file that cannot be read as a model.
    """
    file = _file(text, folder, known=text in model_names())
    if file is None:
        return load_model(text)
    if file.is_dir() or file.suffix == ".json":
        return checked_model(load_huggingface(file).model, where=str(file))
    from forescale.frameworks.readers import read_file

    reading = read_file(file)
    if reading.model is None:
        raise ReaderError(file, "it describes no model")
    return checked_model(reading.model, where=str(file))


def cluster_of(text: str, num_devices: int, *, folder: Path | None = None) -> Cluster:
    """Return the cluster of `num_devices` devices that `text` means: a catalogue name or a cluster file."""
    file = _file(text, folder, known=text in cluster_names())
    return load_cluster(text, num_devices) if file is None else read_cluster_file(file, num_devices)


def named_model(model: Model) -> str | None:
    """Return the catalogue name of `model`, or None if the catalogue has no equal one."""
    known = model.name in model_names() and load_model(model.name) == model
    return model.name if known else None


def named_cluster(cluster: Cluster) -> str | None:
    """Return the catalogue name of `cluster`, or None if the catalogue has no equal one."""
    known = (
        cluster.name in cluster_names()
        and load_cluster(cluster.name, 1).sized(cluster.num_devices) == cluster
    )
    return cluster.name if known else None


def _file(text: str, folder: Path | None, *, known: bool) -> Path | None:
    """Return the path that `text` is, or None if it is a name; a catalogue name beats a file of that name."""
    path = (folder or Path()) / place_of(text)
    looks = "/" in text or Path(text).suffix in _SUFFIXES
    return path if looks or (not known and path.exists()) else None
