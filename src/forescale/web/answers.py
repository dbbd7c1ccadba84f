"""Answers to the page's questions, remembered by address; a number of them at a time, the others are told to wait."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from forescale.advise import Fit
from forescale.advise import fit as fitted
from forescale.errors import ForescaleError
from forescale.explain import explain
from forescale.export import Export, export
from forescale.formula import TermNode
from forescale.io.line import project_line
from forescale.io.question import question_values
from forescale.project import memory_timeline, project
from forescale.projection.result import Projection
from forescale.schedule.draw import to_svg
from forescale.web.asked import Query, address, changed, question, told

T = TypeVar("T")
REMEMBERED = 512
"""Answers that are kept."""
AT_ONCE = 48
"""Questions that are worked on or wait for a processor."""
MOST_DRAWN = 2_000
"""Passes of a schedule that are drawn."""
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""What a curve multiplies its quantity by."""


class BusyError(Exception):
    """More is asked than is worked on at once."""


class Answers:
    """Answers by kind and address, the latest remembered."""

    def __init__(self, *, at_once: int = AT_ONCE, remembered: int = REMEMBERED) -> None:
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(at_once)
        self._remembered = remembered

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one of the places for work.

        Raises
        ------
        BusyError
            If all are taken.
        """
        if not self._free.acquire(blocking=False):
            raise BusyError
        try:
            yield
        finally:
            self._free.release()

    def project(self, query: Query) -> Projection:
        """Return the projection of the layout that is asked."""
        return self._once("project", query, lambda: project(question(query)))

    def document(self, query: Query) -> dict[str, Any]:
        """Return what `forescale project --json` prints."""
        asked = question(query)
        return {**self.project(query).to_json(), "question": question_values(asked)}

    def line(self, query: Query) -> str | None:
        """Return the command that asks the same; None where a part of it has no name."""
        if any(name in ("config", "hbm_gib", "network") for name, _ in told(query)):
            return None
        return self._once("line", query, lambda: f"forescale project {project_line(question(query))}")

    def explain(self, query: Query, quantity: str) -> TermNode:
        """Return how a number comes about."""
        return self._once(f"explain {quantity}", query, lambda: explain(question(query), quantity))

    def export(self, query: Query, to: str) -> Export:
        """Return the layout as files of a framework."""
        return self._once(f"export {to}", query, lambda: export(question(query), to))

    def fit(self, query: Query) -> Fit:
        """Return what would make the layout fit, or faster."""
        return self._once("fit", query, lambda: fitted(question(query), pairs=False))

    def schedule(self, query: Query) -> str | None:
        """Return the step of the pipeline as SVG; None where there is none, or too much to draw."""
        return self._once("schedule", query, lambda: self._drawn(query))

    def curves(self, query: Query) -> list[dict[str, Any]]:
        """Return tokens per second and device, and memory, as devices and batch, memory and network change."""
        return self._once("curves", query, lambda: list(self._varied(query)))

    def _drawn(self, query: Query) -> str | None:
        found, asked = self.project(query), question(query)
        strategy = found.strategy
        passes = 3 * strategy.pp * strategy.vpp * found.num_microbatches
        if strategy.pp == 1 or passes > MOST_DRAWN:
            return None
        return to_svg(memory_timeline(asked).simulation.timeline)

    def _varied(self, query: Query) -> Iterator[dict[str, Any]]:
        asked = question(query)
        batch, devices = asked.workload.global_batch_size, asked.cluster.num_devices
        network = float(dict(told(query)).get("network", "1"))
        kinds: dict[str, Callable[[float], dict[str, str]]] = {
            "devices": lambda factor: {"devices": str(round(devices * factor))},
            "batch": lambda factor: {"global_batch_size": str(round(batch * factor))},
            "network": lambda factor: {"network": f"{network * factor:g}"},
        }
        for kind, change in kinds.items():
            for factor in FACTORS:
                try:
                    found = project(question(changed(query, **change(factor))))
                except ForescaleError:  # a layout that this many do not make has no point
                    continue
                yield {
                    "what": kind,
                    "factor": factor,
                    "step_time_s": found.step_time_s,
                    "tokens_per_s_per_device": found.tokens_per_s_per_device,
                    "peak_bytes": found.memory.peak_bytes,
                }

    def _once(self, kind: str, query: Query, answer: Callable[[], T]) -> T:
        key = (kind, address(query))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]  # type: ignore[no-any-return]
        found = answer()
        with self._lock:
            self._kept[key] = found
            while len(self._kept) > self._remembered:
                self._kept.popitem(last=False)
        return found
