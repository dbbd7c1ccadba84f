"""What pages of studies say in words is what their programs wrote beside them."""

import json
from pathlib import Path

PAGES = Path(__file__).parents[2] / "docs" / "studies"
SUBRAMANIAN = "subramanian2024"
VALIDATION = "The paper's validation: GPT3-175B on 512 A100, NVS 4"


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


def test_deepseek():
    told = {cell[0]: cell[1:] for cell in rows("deepseek-v3", "DeepSeek-V3")}
    names = ("a layer, forward and backward", "step", "step, ends in the place of layers")
    layer, step, balanced = (number(told[name][1]) for name in names)
    dispatch, combine = (number(told[f"{name} by DeepEP's own table"][1]) for name in ("dispatch", "combine"))
    dense = told["dense products, forward, replay and input gradients"]
    ranks = {}
    for row in values("deepseek-v3", "memory"):
        ranks[row["rank"]] = ranks.get(row["rank"], 0.0) + row["GiB"]
    *others, _, most = sorted(ranks.values())
    runs = [
        f"{ours} TFLOP/s, {mfu} | {off}".replace("%", " %").replace("-", "−")
        for *_, ours, _, mfu, off in rows("deepseek-v3", "Llama 3 405B")
    ]
    (_, whole, activations), (_, reduced, _) = rows("deepseek-v3", "Its memory")
    says(
        "deepseek-v3",
        f"{whole} of 80 GiB where gradients stay whole until a stage's last backward, {reduced} where",
        f"{activations} are the activations of the fullest stage",
        f"are 19.9 s a step; {step:.2f} s are projected, {step / 19.91 - 1.0:.1%} more".replace("%", " %"),
        f"in the place of a layer each, {balanced:.2f} s are projected",
        f"32.1 ms a layer. {layer:.1f} ms are projected",
        f"({number(dense[0]):.1f} against {number(dense[1]):.1f} ms)",
        f"{dispatch:.1f} and {combine:.1f} ms are projected",
        f"three dense layers: {most:.0f} of 80 GiB. The others need {others[0]:.0f} to {others[-1]:.0f} GiB",
        *runs,
    )


def test_subramanian2024():
    run, best = [row for row in rows(SUBRAMANIAN, VALIDATION) if row[0].startswith("Forescale")]
    maps = {
        name: sorted(row["days"] for row in values(SUBRAMANIAN, f"figure-{name}") if row["days"])
        for name in ("A5a", "A5a-own", "A5b", "A5b-own")
    }
    ratios = [number(row[5]) for row in rows(SUBRAMANIAN, "Forescale's own engine: B200, NVS 8")]
    says(
        SUBRAMANIAN,
        f"engine gives it {number(run[2]):.1f} s, {number(run[2]) / 22.5 - 1.0:.0%}".replace("%", " %"),
        f"and finds {number(best[2]):.1f} s",
        f"the rate decides, {maps['A5a'][-1]:.0f} to {maps['A5a'][0]:.0f} days",
        f"by Forescale: {maps['A5a-own'][-1]:.0f} to {maps['A5a-own'][0]:.0f} days",
        f"FLOP rate and memory: {maps['A5b'][-1]:.0f} to {maps['A5b'][0]:.0f} days",
        f"by Forescale: {maps['A5b-own'][-1]:.0f} to {maps['A5b-own'][0]:.1f} days",
        f"best steps are {min(ratios):.1f} to {max(ratios):.1f} times as long",
    )


def test_almodel():
    first, *_ = rows("almodel", "The five detailed configurations")
    own = rows("almodel", "The best layouts under our own engine")
    nominal, slow = (next(row for row in own if row[0].startswith(rate)) for rate in ("600", "186"))
    stages = next(row for row in own if row[0].startswith("186") and row[1].startswith("pp 2"))
    says(
        "almodel",
        f"| its best layout: step | {first[1]} s | {first[2].replace(' ', ' s ', 1)} | {first[3]} s |",
        f"| … compute | {first[4]} s | {first[5]} s | {first[5]} s |",
        f"| … exposed communication | {first[6]} s | {first[7]} s | {first[8]} s |",
        f"| … memory | {first[9]} GiB | {first[10]} GiB | {first[10]} GiB |",
        f"31.5 % | {nominal[2]} s, {nominal[3]} % | {slow[2]} s, {slow[3]} % |",
        f"That is {number(first[5]) / number(first[4]):.1f} times the analysis's compute",
        f"gathering half the weights, are {number(stages[2]) / number(slow[2]) - 1.0:.0%} behind".replace(
            "%", " %"
        ),
    )


def test_million():
    grid = {(row[0], row[1]): row for row in rows("million", "1e26 FLOP by machine and devices")}
    sizes = ("16,384", "65,536", "262,144", "1,048,576")
    best = min((row for row in grid.values() if row[6] != "never ends"), key=lambda row: number(row[6]))
    table = []
    for size in sizes:
        ours, other = grid["H100", size], grid["GB200", size]
        days = f"**{other[6]}**" if other == best else other[6]
        table.append(
            f"| {size} | {ours[5]} | {ours[6]} | {ours[7]} | {ours[4]} | {other[5]} | {days} | {other[4]} |"
        )
    money, energy = (
        [grid[name, size][place] for name in ("H100", "GB200") for size in sizes[:2]] for place in (10, 9)
    )
    announced = rows("million", "Announced machines")
    ideal = sorted(number(row[4]) for row in announced)
    billions = sorted(number(row[8]) for row in announced)
    gains = rows("million", "What the network could do")
    says(
        "million",
        *table,
        *(f"| {' | '.join(row[1:])} |" for row in rows("million", "Goodput by restart")),
        f"1e26 FLOP are {money[0]} million on 16,384 and {money[1]} million on 65,536",
        f"an hour of a GB200 {money[2]} and {money[3]} million",
        f"65,536 devices are {energy[1]} GWh (H100) and {energy[3]} GWh (GB200)",
        f"1e26 FLOP take {ideal[0]} to {ideal[-1]} days",
        f"1e27 FLOP take {billions[0]:.0f} (Colossus 2) to {billions[-1]:.0f} days (Rainier)",
        *(f" {number(row[6]):.0f} " for row in announced if row[6] != "never ends"),
        *(f"| {row[4].split('(')[1].rstrip(')')} |" for row in gains),
        *(f"{number(row[2]):.3f} s" for row in gains),
        *(f" {cell} " for row in rows("million", "One GiB over all devices") for cell in row[3:]),
    )
