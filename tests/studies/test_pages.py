"""What pages of studies say in words is what their programs wrote beside them."""

import json
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "studies"


def says(name, *phrases):
    """Fail if a page lacks a phrase, whose figures come from what its program wrote."""
    page = " ".join((PAGES / f"{name}.md").read_text(encoding="utf-8").split())
    assert [phrase for phrase in phrases if phrase not in page] == []


def values(study, name):
    return json.loads((PAGES / study / f"{name}.json").read_text(encoding="utf-8"))["data"]["values"]


def rows(study, heading):
    """Return the cells of the table under a heading of a study's tables."""
    text = (PAGES / study / "tables.md").read_text(encoding="utf-8")
    section = text.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def number(cell):
    return float(cell.split()[0].rstrip("%").replace(",", ""))


def totals(name):
    bars = {}
    for row in values("playbook", name):
        bars[row["bar"]] = bars.get(row["bar"], 0.0) + row["value"]
    return bars


def spread(name, nodes):
    found = [row["MFU"] for row in values("playbook", name) if row["nodes"] == nodes]
    return f"{min(found):.0f} to {max(found):.0f} % on"


def test_playbook():
    recompute, length = totals("recompute"), totals("memory")
    fits = [bar for bar, size in length.items() if size <= 79.65]
    context = {
        row["degree"]: row["value"] for row in values("playbook", "cp") if row["line"] == "128k tokens"
    }
    cells = rows("playbook", "The measured benchmark, layout by layout")
    off = {(cell[0], cell[1]): number(cell[5]) for cell in cells}
    largest = [miss for (_, nodes), miss in off.items() if nodes == "64"]
    advised = [number(cell[-1]) for cell in rows("playbook", "Advice and exact search on H100 nodes")]
    far = sorted(miss for miss in advised if miss > 1.0)
    assert fits == ["1k", "2k"]
    assert [degree for degree, size in context.items() if size <= 79.65] == [16]
    says(
        "playbook",
        "past 80 GiB from 4k tokens",
        f"from {recompute['none']:.0f} GiB without to {recompute['all layers']:.0f} GiB with all layers",
        "128k tokens fit from cp 16",
        f"by model size and nodes: {spread('measured', '1')} one node, {spread('measured', '64')} 64",
        f"by model size and nodes: {spread('swept', '1')} one node, {spread('swept', '64')} 64",
        f"within 12 % in {sum(abs(miss) <= 12 for miss in off.values())} of {len(off)} cells",
        f"in all cells of 64 nodes ({min(largest):.0f} to {max(largest):.0f} %)",
        f"for 80 B on 4 nodes ({off['80.0', '4']:.0f} %)",
        f"in {8 - len(far)} of 8 cases",
        f"{far[0]:.1f} to {far[-1]:.1f} % off",
    )
