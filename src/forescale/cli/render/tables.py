"""Tables of the terminal, and the line above them."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from forescale.spec.cluster import Cluster
from forescale.spec.model import Model


def table(*headings: str, gap: int = 2) -> Table:
    """Return a table without lines: numbers stand right and are never cut, words under a heading with `<` left."""
    found = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for heading in headings:
        if heading.startswith("<"):
            found.add_column(heading[1:])
        else:
            found.add_column(heading, justify="right", no_wrap=True)
    return found


def asked(model: Model, cluster: Cluster, rest: str, *, devices: str | None = None) -> Text:
    """Return what is asked: the model, on how many devices of what, and the rest."""
    count = f"{cluster.num_devices:,} × " if devices is None else devices
    return Text.assemble((model.name, "bold"), f" on {count}{cluster.name} · {rest}")
