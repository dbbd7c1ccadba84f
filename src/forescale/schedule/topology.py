"""Topological levels of a graph given by predecessors; finds a cycle where there is one."""

from __future__ import annotations

from collections.abc import Sequence

_ABSENT, _UNSEEN, _OPEN = -1, -2, -3


def levels(predecessors: Sequence[Sequence[int]], num_nodes: int) -> tuple[list[int], tuple[int, ...]]:
    """Return each node's level (longest number of edges from a source) and a cycle, empty if there is none.

    Parameters
    ----------
    predecessors
        Columns; column k holds for each node its k-th predecessor or -1.
    num_nodes
        Length of every column.

    Returns
    -------
    tuple
        Levels (meaningless where a cycle was found) and the nodes of one cycle in order.
    """
    columns = [list(column) for column in predecessors]
    while len(columns) < 2:
        columns.append([_ABSENT] * num_nodes)
    level = [_UNSEEN] * num_nodes
    level.append(_ABSENT)  # what a negative predecessor finds: a level below all others
    first, second, *others = columns
    for root in range(num_nodes):
        if level[root] != _UNSEEN:
            continue
        stack = [root]
        level[root] = _OPEN
        while stack:
            node = stack[-1]
            before = first[node]
            highest = level[before]
            if highest >= _ABSENT:
                before = second[node]
                found = level[before]
                if found > highest:  # noqa: PLR1730 -- this loop is hot
                    highest = found
                if found >= _ABSENT:
                    before, highest = _third(others, node, level, highest) if others else (_ABSENT, highest)
                    if before == _ABSENT:
                        level[node] = highest + 1
                        stack.pop()
                        continue
            if level[before] == _OPEN:
                return level[:-1], tuple(stack[stack.index(before) :])[::-1]
            level[before] = _OPEN
            stack.append(before)
    return level[:-1], ()


def _third(columns: Sequence[Sequence[int]], node: int, level: list[int], highest: int) -> tuple[int, int]:
    """Return a predecessor beyond the second column without a level, if any, and the highest level found."""
    for column in columns:
        found = level[column[node]]
        if found < _ABSENT:
            return column[node], highest
        highest = max(highest, found)
    return _ABSENT, highest
