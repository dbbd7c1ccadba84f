"""The primitive operators that a cost model prices. Extents are per device and micro-batch, `Numeric`.

An operator says what has to be done (multiplications, bytes, messages), never how long it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from forescale.formula import value_of
from forescale.numeric import Array, Numeric, all_true, column
from forescale.struct import Struct

CollectiveKind: TypeAlias = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "p2p"
]
MeshAxis: TypeAlias = Literal[
    "tp",
    "cp",
    "cp_inner",
    "cp_outer",
    "tp_cp",
    "stage",
    "ep",
    "etp",
    "pp",
    "ends",
    "dp",
    "dp_shard",
    "dp_replicate",
    "expert_dp",
    "dp_cp",
    "data",
]


class Gemm(Struct, frozen=True, kw_only=True):
    """`batch` products of an m x k by a k x n matrix."""

    m: Numeric
    n: Numeric
    k: Numeric
    batch: Numeric = 1.0
    dtype: str = "bf16"
    accumulate_bytes: float = 0.0
    """Extra bytes per output element read and written when the product is added to a buffer (gradients)."""
    aligned: bool = True
    """Whether rows of all three matrices start at multiples of 16 bytes; else slower kernels multiply."""
    kernel: str = ""
    """Kind of recurrence whose kernels multiply (`LinearAttention.scan`); empty: the matrix library."""

    @property
    def flops(self) -> Numeric:
        """Return the floating-point operations: 2·m·n·k per product of the batch."""
        return 2.0 * self.m * self.n * self.k * self.batch


class GroupedGemm(Struct, frozen=True, kw_only=True):
    """One product per local expert: `groups` experts share `m` rows (m / groups each when balanced)."""

    groups: Numeric
    m: Numeric
    n: Numeric
    k: Numeric
    dtype: str = "bf16"
    contract: Literal["k", "m"] = "k"
    """"m": the weight gradient, groups x (k x n) outputs, contracted over rows."""
    accumulate_bytes: float = 0.0
    together: bool = False
    """One kernel multiplies for all groups."""

    @property
    def kernels(self) -> Numeric:
        """Return the number of kernel launches: one per expert (Transformer Engine runs several streams), or one."""
        return 1.0 if self.together else self.groups

    @property
    def flops(self) -> Numeric:
        """FLOP: 2·m·n·k over all experts."""
        return 2.0 * self.m * self.n * self.k


class AttentionCore(Struct, frozen=True, kw_only=True):
    """Scores, softmax and weighted values of one call, queries against keys/values on this device."""

    batch: Numeric
    heads: Numeric
    kv_heads: Numeric
    q_len: Numeric
    kv_len: Numeric
    pairs: Numeric
    """Query-key pairs that the mask leaves, per sequence and head (causal: about q_len·kv_len / 2)."""
    qk_dim: Numeric
    v_dim: Numeric
    backward: bool = False
    flash: bool = True
    causal: bool = True
    chunked: bool = False
    """Chunks attend within themselves only (linear attention): none is longer for its place in the sequence."""
    dtype: str = "bf16"
    kernel: str = ""
    """Version of an older flash kernel, such as "flash-1", or the kind of a recurrence in chunks; empty: those that the
    software stack runs."""
    score_bytes: float = 0.0
    """Bytes of each score that one kernel of scale, mask and softmax, and dropout after it, read and write between the
    products; 0 is a kernel for each step."""
    busy: Numeric = 1.0
    """Pairs of the mean rank over `pairs`, where these are of the rank that the others wait for."""
    picks: bool = False
    """Whether the keys of each query are picked, and multiplied whether or not a place for one is filled."""

    @property
    def skips_masked(self) -> bool:
        """Whether the kernel leaves out the pairs that the mask hides, as flash attention does.

        Unfused attention, and a kernel that is given a mask, compute the whole square and mask it afterwards.
        """
        return self.flash and not self.picks and self.kernel != "masked"

    @property
    def computed_pairs(self) -> Numeric:
        """Return the number of query-key pairs that the kernel computes, per sequence and head, on the slowest rank."""
        return self.pairs if self.skips_masked else self.q_len * self.kv_len

    @property
    def grows(self) -> bool:
        """Whether later queries see more keys: a causal mask without a window, of half of all pairs or more."""
        return (
            self.causal
            and not self.chunked
            and all_true(2.0 * value_of(self.pairs) >= value_of(self.q_len) * value_of(self.kv_len))
        )

    @property
    def flops(self) -> Numeric:
        """FLOP of the pairs that the mask leaves, on the mean rank: 2·(qk_dim + v_dim) each.

        Backward has 5 products for 2 with flash attention (scores are made again), 4 without.
        """
        return self._products_of(self.pairs * self.busy)

    @property
    def executed_flops(self) -> Numeric:
        """FLOP of the pairs that the kernel computes, on the mean rank."""
        pairs = self.computed_pairs
        return self._products_of(pairs * self.busy if self.skips_masked else pairs)

    def _products_of(self, pairs: Numeric) -> Numeric:
        forward = 2.0 * self.batch * self.heads * pairs * (self.qk_dim + self.v_dim)
        if not self.backward:
            return forward
        if not self.flash:
            return 2.0 * forward
        return 2.0 * self.batch * self.heads * pairs * (3.0 * self.qk_dim + 2.0 * self.v_dim)


class Elementwise(Struct, frozen=True, kw_only=True):
    """Work bound by memory traffic: norms, activations, residuals, permutations, optimizer updates."""

    bytes_moved: Numeric
    """HBM bytes read and written."""
    family: Literal["elementwise", "norm", "softmax", "permute", "embedding", "loss", "optimizer", "cast"] = (
        "elementwise"
    )
    kernels: Numeric = 1.0
    """Kernel launches."""
    called: bool = True
    """Launched by a call of the framework; else by the call of the message before or behind it."""
    own_stream: bool = False
    """On a stream of its own, behind other compute."""
    transposed_bytes: Numeric = 0.0
    """HBM bytes of a second copy, transposed, which only devices with `needs_transposes` write."""


class EagerKernel(Struct, frozen=True, kw_only=True):
    """A recorded kernel of eager PyTorch that multiplies no matrices."""

    operator: str
    """ATen operator that launches it."""
    kind: str
    """How it accesses memory (`forescale.spec.trace.KernelKind`)."""
    dtype: str
    elements: Numeric
    """Elements that it computes."""
    bytes_moved: Numeric
    """Bytes read and written."""
    kernels: Numeric = 1.0
    """Launches; extents are of each."""


class Collective(Struct, frozen=True, kw_only=True):
    """A message among the devices of one mesh axis."""

    kind: CollectiveKind
    axis: MeshAxis
    num_bytes: Numeric
    """Bytes of the full tensor: gathered, not yet scattered, one rank's whole send buffer (all_to_all), or
    the message (p2p)."""


Compute: TypeAlias = Gemm | GroupedGemm | AttentionCore | Elementwise | EagerKernel
Primitive: TypeAlias = Compute | Collective


Op = TypeVar("Op", bound=Compute)
Read: TypeAlias = Callable[[Any], tuple[Any, ...]]
EXTENTS: Mapping[type, tuple[str, ...]] = {
    Gemm: ("m", "n", "k", "batch"),
    GroupedGemm: ("groups", "m", "n", "k"),
    AttentionCore: ("batch", "heads", "kv_heads", "q_len", "kv_len", "pairs", "qk_dim", "v_dim", "busy"),
    Elementwise: ("bytes_moved", "kernels", "transposed_bytes"),
    EagerKernel: ("elements", "bytes_moved", "kernels"),
}
"""What may be an array over operators."""
FLAGS: Mapping[type, tuple[str, ...]] = {
    Gemm: ("__class__", "dtype", "accumulate_bytes", "aligned", "kernel"),
    GroupedGemm: ("__class__", "dtype", "contract", "accumulate_bytes", "together"),
    AttentionCore: (
        "__class__",
        "backward",
        "flash",
        "causal",
        "chunked",
        "dtype",
        "kernel",
        "score_bytes",
        "picks",
    ),
    Elementwise: ("__class__", "family", "called", "own_stream"),
    EagerKernel: ("__class__", "operator", "kind", "dtype"),
}
"""The rest, which operators that are priced together must share."""
_EXTENTS: Mapping[type, Read] = {kind: attrgetter(*names) for kind, names in EXTENTS.items()}
_FLAGS: Mapping[type, Read] = {kind: attrgetter(*names) for kind, names in FLAGS.items()}


def flags_of(op: Compute) -> tuple[Any, ...]:
    """Return what `op` shares with operators that differ from it in extents only."""
    return _FLAGS[type(op)](op)


def stacked(ops: Sequence[Op], stack: Callable[[Iterable[float]], Array] = column) -> Op:
    """Return operators of equal flags as one, in their order; `stack` makes one extent of theirs."""
    kind = type(ops[0])
    columns = zip(*map(_EXTENTS[kind], ops), strict=True)
    stacks: dict[str, Any] = {
        name: stack(map(float, extents)) for name, extents in zip(EXTENTS[kind], columns, strict=True)
    }
    return replace(ops[0], **stacks)
