"""Search: the best of all legal layouts, proven without evaluating all of them.

One search, from question to proof:

1. *Question.* `rank.search` takes a `Question`. `scenarios` splits it where the space leaves open what changes
   the question itself (precision, overlap, dispatcher, offload); `Ranking` solves one scenario after the other,
   each with the incumbent of those before it.
2. *Layouts.* `tree.enumerate_cells` enumerates every combination of degrees, without how states are sharded: a
   **cell**. `spec.constraints` says which are legal. What is crossed with cells are the **variants** of
   `layouts`: kinds of tensor and context parallelism, schedule, order of ranks, recompute policy.
3. *Tree.* Variants that share operators and schedule are a **branch**; a **node** is a branch on a cell. A node
   is branched by recompute policy, then by order or placement of ranks, then by sharding: a leaf is a layout
   (`tree.Tree`).
4. *Relaxation.* A lower bound is what `evaluate` says of a node with what is not decided yet relaxed: each
   message takes the least of all places that some placement gives it (`ranks.RelaxedPlacement`), states
   take the least of all legal shardings (`least.LeastStates`), as does the data-parallel traffic that shows behind any
   passes, once ranks are placed (`least.LeastTraffic`); before, it takes no time, or that in the best order where
   nodes are many. Before that,
   `bounds.WorkBounds` puts the work on stages that nothing delays, and `bounds.MemoryBounds` keeps
   the least of any policy. A search with a cutoff enumerates only what work without experts leaves
   (`bounds.promising_cells`). A formula never falls when one of its inputs rises, and what evaluates a node is what
   evaluates a layout, so a bound holds by construction, up to a margin of 1e-9 for rounding.
5. *Branch and bound.* `solve.Solver` takes the most promising nodes first. It bounds them, branches them,
   evaluates the layouts behind the best and keeps these as the **incumbent**. Its last value (of different
   shapes, where variants are folded) is the **cutoff**. To have one soon, the first nodes are of one operator
   list and may fit, and of each shape its best layouts come first; a large search under schedules learns one from
   a sample of its cells. Nodes whose bound is beyond it are **pruned** and their layouts counted, unless they may
   still be the fastest within a relaxed limit of memory.
6. *Proof.* The search ends when no node is left. Every legal layout was then evaluated, proven over memory, or
   proven no better than the best: the three counts add up to `num_legal`, and the gap is 0. A search that is
   stopped says its gap: how far the least bound left lies below the incumbent. `checkpoint` keeps what is
   settled.
7. *Beyond.* `relax` searches the question with one constraint lifted at a time; the best step found is the first
   cutoff. `pareto` evaluates every layout, for fronts and for the slowest; `scan` asks one search per number of
   devices or batch.

`evaluate` scores layouts in batches: nodes that share their operators are one array, whose distinct blocks are
priced once.
"""

from forescale.search.compare import Comparison, compare
from forescale.search.rank import ParetoResult, SearchResult, pareto_search, search
from forescale.search.relax import Relaxation, Remedy, remedies
from forescale.search.scan import ScanResult, Target, Terms, fewest_devices, scan_batches, scan_devices

__all__ = [
    "Comparison",
    "ParetoResult",
    "Relaxation",
    "Remedy",
    "ScanResult",
    "SearchResult",
    "Target",
    "Terms",
    "compare",
    "fewest_devices",
    "pareto_search",
    "remedies",
    "scan_batches",
    "scan_devices",
    "search",
]
