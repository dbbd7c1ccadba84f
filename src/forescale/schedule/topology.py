"""Topological levels of a graph given by predecessors; finds a cycle where there is one."""

from __future__ import annotations

from collections.abc import Sequence


def levels(predecessors: Sequence[Sequence[int]], num_nodes: int) -> tuple[list[int], tuple[int, ...]]:
    """Return each node's level (longest number of edges from a source) and a cycle, empty if there is none.

    Parameters
    ----------
    predecessors
        Columns; column k holds for each node its k-th predecessor or a negative number.
    num_nodes
        Length of every column.

    Returns
    -------
    tuple
        Levels (meaningless where a cycle was found) and the nodes of one cycle in order.
    """
    level = [-1] * num_nodes
    columns = [list(column) for column in predecessors]
    for root in range(num_nodes):
        if level[root] >= 0:
            continue
        stack = [root]
        level[root] = -2
        while stack:
            node = stack[-1]
            highest = -1
            for column in columns:
                before = column[node]
                if before >= 0:
                    found = level[before]
                    if found < 0:
                        if found == -2:
                            return level, tuple(stack[stack.index(before) :])[::-1]
                        level[before] = -2
                        stack.append(before)
                        break
                    if found > highest:  # noqa: PLR1730 -- this loop is hot
                        highest = found
            else:
                level[node] = highest + 1
                stack.pop()
    return level, ()
