"""Pictures hold every action where the simulation puts it."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from forescale.schedule import Request, families, family, simulate
from forescale.schedule.draw import to_html, to_perfetto, to_svg, to_terminal


def simulated(name="zbv", pp=4, m=8):
    item = family(name)
    return simulate(item.build(Request(pp=pp, num_microbatches=m, vpp=item.fixed_vpp or 2)))


def test_terminal_of_1f1b():
    lines = to_terminal(simulated("1f1b").timeline).splitlines()
    assert lines[0] == "1f1b, pp 4, 8 micro-batches"
    assert lines[2] == "rank 0 F0F1F2F3············B0--F4B1--F5B2--F6B3--F7B4--··B5--··B6--··B7--  27.3%"
    assert lines[5].startswith("rank 3 ······F0B0--F1B1--")


def test_terminal_keeps_to_its_width():
    assert (
        max(len(line) for line in to_terminal(simulated("v-half", 4, 40).timeline, width=80).splitlines()[2:])
        <= 80
    )


def test_terminal_colours_instead_of_letters():
    text = to_terminal(simulated("zbv").timeline, colour=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "\x1b[44" in text
    assert plain.splitlines()[2].startswith("rank 0 0123456")


@pytest.mark.parametrize("name", [item.name for item in families()])
def test_svg_is_well_formed_and_complete(name):
    simulation = simulated(name)
    root = ElementTree.fromstring(to_svg(simulation.timeline))
    titles = [element.text for element in root.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == simulation.start.size
    assert len(simulation.timeline.memory) == 4


def test_html_is_self_contained():
    page = to_html([simulated("zbv").timeline, simulated("1f1b").timeline], title="Two <b>schedules</b>")
    assert "http://" not in page
    assert "https://" not in page
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])
    assert [len(panel["bars"]) for panel in data] == [4 * 8 * 6, 4 * 8 * 2]
    assert "<h1>Two &lt;b&gt;schedules&lt;/b&gt;</h1>" in page
    assert page.count("<canvas tabindex") == 2
    assert "weight gradient" in page
    assert "offload" not in page


def test_perfetto_has_slices_flows_and_counters():
    simulation = simulated("dualpipev")
    trace = to_perfetto(simulation.timeline, unit_s=1e-3)
    phases = [event["ph"] for event in trace["traceEvents"]]
    assert phases.count("X") == simulation.start.size
    assert phases.count("s") == phases.count("f") == simulation.num_messages
    assert phases.count("C") > 4
    last = max(event["ts"] + event["dur"] for event in trace["traceEvents"] if event["ph"] == "X")
    assert last == pytest.approx(simulation.makespan * 1e3)
    ends = {(e["pid"], round(e["ts"] + e["dur"], 6)) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert ends


def test_flows_go_from_a_pass_to_a_later_one():
    timeline = simulated("chimera").timeline
    for sender, receiver in timeline.messages:
        source, target = timeline.bars[sender], timeline.bars[receiver]
        assert source.rank != target.rank
        assert source.end <= target.start + 1e-9


def test_notebooks_show_the_timeline():
    simulation = simulated()
    assert simulation._repr_html_().count("<svg") == 1


def test_notebooks_show_who_does_what_in_which_order():
    table = ElementTree.fromstring(simulated("dualpipev").schedule._repr_html_())
    assert [row.find("th").text for row in table.findall("tr")] == [f"rank {rank}" for rank in range(4)]
    assert table.find("tr/td").text == "0F0"


def test_busy_and_bubble_of_the_picture_are_those_of_the_simulation():
    simulation = simulated("dualpipe")
    timeline = simulation.timeline
    for rank in range(4):
        assert timeline.busy(rank) == pytest.approx(simulation.timing.busy[rank])
