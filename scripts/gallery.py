"""Write src/forescale/web/gallery.json: published runs with the address of the same question on the page.

`python scripts/gallery.py` writes the file from data/published/plans/runs.csv and prints what the page projects;
a test compares it with what this script would write.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from forescale.catalogue.clusters import cluster_names, load_cluster
from forescale.catalogue.models import load_model, model_names
from forescale.files import read_table
from forescale.graph.counts import count_parameters
from forescale.io.named import model_given
from forescale.presets import project_as
from forescale.validation.cases import load_cases, plan_keys, plan_of
from forescale.web.asked import question, told
from forescale.web.upload import form_fields, model_fields

ROOT = Path(__file__).resolve().parent.parent
GALLERY = ROOT / "src" / "forescale" / "web" / "gallery.json"
NAMES = GALLERY.parent / "static" / "names.json"
PUBLISHED = ROOT / "data" / "published"
RUNS = {
    "MB2606-007": "Llama 3.1 405B on 1,024 H100",
    "TT-014": "Llama 3.1 405B on 512 H100 with torchtitan",
    "TPUV5P-001": "Llama 3.1 405B on 512 TPU v5p",
    "MB260401-007": "Llama 3 70B on 64 H100",
    "TT-043": "Llama 2 70B on 64 A100",
    "LLAMA1-001": "LLaMA 65B on 2,048 A100",
    "TT-007": "Llama 3.1 8B at 32k tokens on 8 H100",
    "PRIMUS-027": "DeepSeek-V3 on 1,024 MI355X",
    "MB2606-008": "DeepSeek-V3 on 256 GB300",
    "MB2606-021": "Kimi K2 on 256 GB300",
    "MB2606-020": "Qwen3 235B-A22B on 256 GB200",
    "MB2606-018": "Qwen3 30B-A3B on 16 H100",
    "MB260401-023": "gpt-oss-120b on 64 H100",
    "MB2606-026": "Nemotron 3 Super on 64 GB300",
    "MPF-026": "Mixtral 8x22B on 1,024 H100",
    "PAX-024": "GPT-3 175B on 256 H100",
    "OPT-001": "OPT 175B on 992 A100",
    "BBGPT-001": "BloombergGPT 50B on 512 A100",
    "PYTHIA-008": "Pythia 12B on 256 A100",
    "TRN1-001": "Llama 3.1 8B on 512 Trainium",
}
"""Rows of the published table, with their titles."""


def addresses() -> dict[str, str]:
    """Return the address of every run."""
    table = read_table(PUBLISHED / "plans" / "runs.csv")
    keys = plan_keys(table)
    return {row.id: address(plan_of(row, keys)) for row in table.rows if row.id in RUNS}


def gallery() -> list[dict[str, Any]]:
    """Return the entries: title, published step time, source, and the address of the question."""
    measured = {case.id: case.measured.step_time_s for case in load_cases(PUBLISHED / "plans" / "runs.csv")}
    with (PUBLISHED / "runs.csv").open(encoding="utf-8", newline="") as file:
        sources = {row["id"]: row["source"] for row in csv.DictReader(file)}
    links = addresses()
    return [
        {
            "id": name,
            "title": title,
            "measured_step_s": measured[name],
            "source": sources[name],
            "address": links[name],
        }
        for name, title in RUNS.items()
    ]


def address(plan: dict[str, Any]) -> str:
    """Return the address of a plan on the page."""
    values: dict[str, Any] = {
        name: plan[name] for name in ("devices", "framework", "strategy", "workload") if name in plan
    }
    fields = dict(form_fields(values)) | model_fields(model_given(plan["model"], "gallery"))
    return urlencode(list(told([*fields.items(), ("cluster", plan["cluster"])])))


def model_row(name: str) -> dict[str, Any]:
    """Return the numbers by which people choose a model."""
    model = load_model(name)
    params = count_parameters(model).total
    return {"name": name, "params": params, "layers": model.num_layers, "seq_len": model.max_seq_len}


def cluster_row(name: str) -> dict[str, Any]:
    """Return the numbers by which people choose a cluster."""
    cluster = load_cluster(name, 1)
    device, network = cluster.device, cluster.tiers[-1].bandwidth
    flops = device.matrix_flops.bf16
    return {
        "name": name,
        "hbm": device.hbm_bytes,
        "bandwidth": device.hbm_bandwidth,
        "flops": flops,
        "network": network,
    }


if __name__ == "__main__":
    rows = {"model": list(map(model_row, model_names())), "cluster": list(map(cluster_row, cluster_names()))}
    NAMES.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    entries = gallery()
    GALLERY.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for entry in entries:
        result = project_as(question(parse_qsl(entry["address"])))
        change = result.step_time_s / entry["measured_step_s"] - 1.0
        sys.stdout.write(f"{entry['title']}: {entry['measured_step_s']:.4g} s published, {change:+.1%}\n")
