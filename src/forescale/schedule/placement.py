"""Which rank holds which stage."""

from __future__ import annotations

from dataclasses import dataclass

from forescale.schedule.errors import ScheduleError


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Ranks of all stages.

    With several replicas (bidirectional pipelines) the parameters exist more than once: stage ids run over
    replica 0's stages, then replica 1's; equal shares of consecutive micro-batches go through each replica.
    """

    rank_of_stage: tuple[int, ...]
    """Rank of each stage id."""
    num_replicas: int = 1
    """Copies of the model inside the pipeline; 2 for DualPipe and Chimera."""

    def __post_init__(self) -> None:
        """Check that ranks are 0..p-1 without a gap and replicas are of one length."""
        ranks = set(self.rank_of_stage)
        if not ranks or ranks != set(range(len(ranks))):
            msg = f"a placement uses ranks 0 to p - 1, each at least once; got {sorted(ranks)[:16]}"
            raise ScheduleError(msg)
        if self.num_replicas < 1 or len(self.rank_of_stage) % self.num_replicas:
            msg = f"{len(self.rank_of_stage)} stages do not split over {self.num_replicas} replicas"
            raise ScheduleError(msg)

    @property
    def num_ranks(self) -> int:
        """Pipeline ranks, p."""
        return max(self.rank_of_stage) + 1

    @property
    def num_stages(self) -> int:
        """Stages the model is cut into (of one replica)."""
        return len(self.rank_of_stage) // self.num_replicas

    @property
    def vpp(self) -> float:
        """Chunks of the model per rank; the inverse of a stage's share of a device's full share."""
        return self.num_stages / self.num_ranks

    @property
    def style(self) -> str:
        """Name of the placement: loop, wave (V for two chunks), bidirectional or custom."""
        p, chunks = self.num_ranks, len(self.rank_of_stage) // self.num_ranks
        if self == loop(p, chunks):
            return "loop"
        if self == wave(p, chunks):
            return "V" if chunks == 2 else "wave"
        return "bidirectional" if self.num_replicas > 1 else "custom"

    def replica(self, microbatch: int, num_microbatches: int) -> int:
        """Return the replica a micro-batch goes through."""
        return microbatch * self.num_replicas // num_microbatches


def loop(num_ranks: int, vpp: int = 1) -> Placement:
    """Return stage s on rank s mod p (Megatron's virtual pipeline)."""
    return Placement(rank_of_stage=tuple(range(num_ranks)) * vpp)


def wave(num_ranks: int, vpp: int = 2) -> Placement:
    """Return stages going down the ranks and up again; V for two chunks, Hanayo's waves beyond."""
    down = tuple(range(num_ranks))
    return Placement(rank_of_stage=tuple(r for c in range(vpp) for r in (down if c % 2 == 0 else down[::-1])))


def bidirectional(num_ranks: int) -> Placement:
    """Return two replicas, one down the ranks and one up (Chimera, DualPipe)."""
    down = tuple(range(num_ranks))
    return Placement(rank_of_stage=down + down[::-1], num_replicas=2)
