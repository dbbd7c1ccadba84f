"""Where each plan field of a published run comes from: published, derived (how) or assumed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scripts.rows.tables import reasons_of

from forescale.files import Row
from forescale.frameworks.reading import flat
from forescale.validation.case import Case

TYPED = (
    "model", "cluster", "devices", "framework", "strategy.tp", "strategy.cp", "strategy.pp", "strategy.vpp",
    "strategy.ep", "strategy.etp", "strategy.dp_", "strategy.zero", "strategy.micro_batch_size",
    "workload.seq_len", "workload.global_batch_size", "workload.precision.compute", "workload.precision.recipe",
)  # fmt: skip
"""First characters of the plan fields that a user types."""
COLUMN_OF: Mapping[str, str] = {
    "model": "model", "devices": "n_gpus", "cluster": "hardware", "framework": "source", "strategy.tp": "tp",
    "strategy.cp": "cp", "strategy.pp": "pp", "strategy.vpp": "vpp", "strategy.ep": "ep", "strategy.etp": "etp",
    "strategy.sp": "sp", "strategy.dp_replicate": "zero_or_fsdp", "strategy.dp_shard": "zero_or_fsdp",
    "strategy.zero": "zero_or_fsdp", "strategy.micro_batch_size": "micro_batch", "strategy.recompute": "recompute",
    "strategy.schedule": "schedule", "strategy.flash_attention": "attention", "workload.seq_len": "seq_len",
    "workload.global_batch_size": "global_batch", "workload.optimizer": "optimizer",
    "workload.precision": "compute_dtype",
}  # fmt: skip
"""The column of a row that publishes a plan field, or the fields below it."""
REMARKED = {
    "strategy.graphs": r"cuda graph impl=|TE CUDA graphs",
    "strategy.dispatcher": r"deepep|hybridep",
    "strategy.offload": r"offload",
    "strategy.dp_shard": r"shard(?:ing)? group \d+|\bFSDP=\d+|slice",
}
"""Plan fields that remarks publish, and the words that say so."""
MODEL = {
    "model.hidden_size": "hidden", "model.layers": "layers", "model.vocab_size": "vocab", "model.name": "model",
}  # fmt: skip


def origins_of(case: Case, row: Row, plan: Mapping[str, Any]) -> dict[str, str]:
    """Return "published", "assumed" or the derivation of each plan field."""
    if "all_args" in row.cells:
        named = "the platform of the test" if "cluster" in plan else ""
        sized = "published" if case.core else "assumed"
        return dict.fromkeys(plan, "published") | {"cluster": named, "devices": sized} if plan else {}
    reasons = dict(flat({"strategy": {}, "workload": {}} | reasons_of(row)))
    inferred = re.search(r"inferred: ([^;)]*)", row.text("confidence"))
    listed = frozenset(re.split(r"[,\s]+", inferred[1])) if inferred else frozenset()
    return {name: _origin(name, case, row, reasons, listed) for name in plan}


def _origin(name: str, case: Case, row: Row, reasons: Mapping[str, str], inferred: frozenset[str]) -> str:
    for key, why in reasons.items():
        if name == key or name.startswith(f"{key}.") or key.startswith(f"{name}."):
            return f"the configuration that the source cites: {why}"
    if name == "framework":
        assert case.stated is not None
        return "assumed" if case.stated.assumed else "named by the source"
    if name.startswith("model"):
        return _of_model(name, case, row)
    if name.startswith("cluster."):
        return "the catalogue cluster of the published hardware, with the nodes and network of the remarks"
    if "without recompute it could not have run" in " ".join(case.notes) and "recompute" in name:
        return "the fewest recomputed layers with which the run fits"
    field = next((key for key in _prefixes(name) if key in REMARKED), None)
    if field and re.search(REMARKED[field], row.text("notes"), re.IGNORECASE):
        return "published"
    column = next((COLUMN_OF[key] for key in _prefixes(name) if key in COLUMN_OF), None)
    if column is None or not row.text(column):
        return "assumed"
    return "inferred by the reader of the source" if column in inferred else "published"


def _of_model(name: str, case: Case, row: Row) -> str:
    if name in ("model", "model.base"):
        return "published"
    column = MODEL.get(name)
    if column and row.text(column):
        return "published"
    taken = next((note for note in case.notes if note.startswith("catalogue model")), None)
    return taken or "the architecture of the published name"


def _prefixes(name: str) -> list[str]:
    """Return a dotted name and every table that it lies in, longest first."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
