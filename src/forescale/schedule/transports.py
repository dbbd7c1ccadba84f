"""What ranks spend beside computing with one transport of messages, as measured: data with its provenance."""

from __future__ import annotations

from dataclasses import dataclass, replace

from forescale.errors import UnknownNameError
from forescale.files import packaged
from forescale.records import record
from forescale.schedule.times import LinkTimes, StageTimes

FILE = "transports"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """Overheads of a transport and of the runner that uses it; milliseconds."""

    message: float = 0.0
    """From the end of a pass to the start of one on another rank that stood waiting for it."""
    host: float = 0.0
    """A rank's own time for each pass."""
    posted: float = 0.0
    """A rank's own time for each send or receive."""
    apart: float = 1.0
    """I and W over B."""
    jitter: float = 0.0
    """Standard deviation of a pass's duration over its mean."""
    source: str = ""

    def applied(self, times: StageTimes, links: LinkTimes) -> tuple[StageTimes, LinkTimes]:
        """Return durations in milliseconds with these overheads; messages that are given take what they are given."""
        latency = 0.0 if links.transfer else self.message
        return replace(times, host=self.host, apart=self.apart), replace(
            links, latency=latency, host=self.posted
        )


NO_TRANSPORT = Transport()


def transport(name: str) -> Transport:
    """Return the overheads of a transport by its name.

    Raises
    ------
    UnknownNameError
        If it was not measured.
    """
    known = packaged(FILE)
    if name not in known:
        kind = "transport"
        raise UnknownNameError(kind, name, known)
    return record(Transport, known[name], name, FILE)
