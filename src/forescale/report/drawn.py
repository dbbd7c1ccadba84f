"""What a page draws of a layout in addition to its charts: the placement of ranks, and one step of the pipeline."""

from __future__ import annotations

from forescale.cost.mesh import Group, groups, order_of, ranks_per_tier
from forescale.escaping import xml
from forescale.graph.ops import MeshAxis
from forescale.graph.sharding import split_layout
from forescale.project import memory_timeline
from forescale.question import Question
from forescale.schedule.draw import to_svg
from forescale.spec.cluster import Cluster
from forescale.spec.layout import Layout
from forescale.units import counted
from forescale.view.axes import SERIES
from forescale.view.page import drawing

MOST_PASSES = 2_000
"""Passes of a schedule that are drawn."""
SHOWN = 64
"""Devices that are drawn, if a node has no more."""
SIDE, GAP, ROW = 15, 9, 46
"""Sides of a device, between nodes, and between rows."""
MEANINGS: dict[MeshAxis, str] = {
    "tp": "tensor parallel",
    "cp": "context parallel",
    "ep": "expert parallel",
    "dp": "data parallel",
    "pp": "pipeline parallel",
}


def drawings(question: Question) -> list[str]:
    """Return figures of one layout: its placement, and its pipeline if it has one that is not too much to draw."""
    tiers = "; ".join(f"{tier.name}: {tier.bandwidth / 1e9:,.0f} GB/s" for tier in question.cluster.tiers)
    result = [drawing(placement(question.layout, question.cluster), "Placement of ranks", tiers)]
    layout, workload = question.layout, question.workload
    passes = 3 * layout.pp * layout.vpp * workload.global_batch_size // (layout.dp * layout.micro_batch_size)
    if layout.pp > 1 and passes <= MOST_PASSES:
        step = memory_timeline(question).simulation.timeline
        result.append(drawing(to_svg(step), "One step of the pipeline"))
    return result


def placement(layout: Layout, cluster: Cluster) -> str:
    """Return an SVG document: for each axis of more than one rank the devices that device 0 talks to, node by node."""
    degrees, choices = split_layout(layout, domain=cluster.domain)
    meshes = groups(degrees, order_of(layout), choices.tp_kind)
    node = cluster.devices_per_node
    count = min(cluster.num_devices, max(node, SHOWN))
    axes = [(name, meshes[name]) for name in MEANINGS if meshes[name].num_ranks > 1]
    left = [place * SIDE + place // node * GAP for place in range(count)]
    width = max(left[-1] + SIDE + 2, 460)
    rows = [
        *(_nodes(left, node)),
        *(part for row, (name, group) in enumerate(axes) for part in _axis(name, group, cluster, left, row)),
    ]
    more = cluster.num_devices - count
    tail = f"{counted(more, 'further device')} not drawn" if more else "all devices drawn"
    height = 22 + ROW * len(axes) + 18
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12" fill="currentColor">',
            *rows,
            f'<text x="0" y="{height - 4}">{xml(tail)}</text>',
            "</svg>",
        ]
    )


def _nodes(left: list[int], node: int) -> list[str]:
    wide = node * SIDE
    return [
        f'<text x="{left[first]}" y="12">{"node " if wide > 60 else ""}{first // node}</text>'
        for first in range(0, len(left), node)
        if wide > 14
    ]


def _axis(name: MeshAxis, group: Group, cluster: Cluster, left: list[int], row: int) -> list[str]:
    """Return one axis: what it is, and the devices, those of rank 0's communicator filled."""
    members, top = set(_members(group)), 22 + ROW * row
    colour = SERIES[list(MEANINGS).index(name)]
    seen = len([member for member in members if member < len(left)])
    rest = f", {len(members) - seen} not drawn" if len(members) > seen else ""
    text = f"{name} {len(members)}, {MEANINGS[name]}: {_crossed(group, cluster)}{rest}"
    result = [f'<text x="0" y="{top + 12}">{xml(text)}</text>']
    for rank, x in enumerate(left):
        inside = rank in members
        paint = f'fill="{colour}"' if inside else 'fill="currentColor" fill-opacity="0.12"'
        result.append(
            f'<rect x="{x}" y="{top + 18}" width="{SIDE - 2}" height="{SIDE - 2}" rx="2" {paint}>'
            f"<title>device {rank}{' talks to device 0 over ' + name if inside and rank else ''}</title></rect>"
        )
    return result


def _members(group: Group) -> list[int]:
    """Return the devices of the communicator in which rank 0 is."""
    members = [0]
    for size, stride in group.axes:
        members = [
            base + index * round(float(stride)) for index in range(round(float(size))) for base in members
        ]
    return members


def _crossed(group: Group, cluster: Cluster) -> str:
    """Return how many ranks share each tier, up to the one that holds them all."""
    message = []
    for tier, ranks in zip(cluster.tiers, ranks_per_tier(group, cluster), strict=True):
        whole = float(ranks) >= float(group.num_ranks)
        if whole or float(ranks) > 1.0:
            message.append(f"{'all' if whole else f'{float(ranks):g}'} within {tier.name}")
        if whole:
            break
    return ", ".join(message)
