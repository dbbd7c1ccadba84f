"""How it is laid out: degrees of every parallelism, sharding of states, recompute and order on the network."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Annotated, Literal, TypeAlias

from msgspec import field
from msgspec.structs import replace

from forescale.errors import conflicts, given_twice, required_with, wrong_type
from forescale.limits import Devices, Extent, Factor, Interval, OptionalExtent
from forescale.numeric import Numeric
from forescale.repr import one_line
from forescale.spec.context import CONTEXT_KINDS, HALVED, ContextKind, Values, inner_ranks
from forescale.spec.dispatchers import Dispatcher
from forescale.spec.kernels import CrossEntropy as CrossEntropy  # noqa: PLC0414 (exported again)
from forescale.spec.kernels import Kernels as Kernels  # noqa: PLC0414 (exported again)
from forescale.spec.option import Option, Under
from forescale.struct import SpecStruct


def state_shards(degrees: Values, tp_kind: TensorKind) -> Numeric:
    """Return the ranks that the states of non-expert parameters are sharded over.

    Context ranks hold copies of all weights, but of none on the grid of SUMMA.
    """
    shards: Numeric = degrees.dp_shard
    return shards if tp_kind == "summa" else shards * degrees.cp


def expert_shards(degrees: Values) -> Numeric:
    """Return the ranks that the states of expert parameters are sharded over: their replicas within one `dp_shard`."""
    shards: Numeric = degrees.tp * degrees.cp * degrees.dp_shard / (degrees.ep * degrees.etp)
    return shards


def settled(layout: Layout, domain: int) -> Layout:
    """Return the layout with what it leaves to the cluster: how many neighbours exchange heads."""
    if layout.cp_inner is not None or not CONTEXT_KINDS[layout.cp_kind].halves:
        return layout
    ranks = inner_ranks(cp=layout.cp, tp=layout.tp, wanted=None, domain=domain)
    return replace(layout, cp_inner=int(ranks))


Degree: TypeAlias = Devices
TensorKind: TypeAlias = Literal["1d", "summa"]
Axis: TypeAlias = Literal["tp", "cp", "dp", "pp"]
Module: TypeAlias = Literal[
    "core_attn", "layernorm", "mlp", "mla_up_proj", "moe", "moe_act", "shared_experts"
]
RematPolicy: TypeAlias = Literal[
    "minimal",
    "minimal_with_context",
    "save_dot_with_context_except_mlp",
    "save_dot_except_mlpwi",
    "save_dot_except_mlp",
    "save_qkv_proj",
    "save_out_proj",
    "torch_per_op",
    "torch_per_op_compiled",
    "torch_per_mm_compiled",
    "custom",
]
KeptName: TypeAlias = Literal["query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi", "mlpwo"]
OffloadName: TypeAlias = Literal[
    "attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act",
    "decoder_layer_input", "query_proj", "key_proj", "value_proj", "context", "out_proj", "mlpwi", "mlpwo",
]  # fmt: skip
Reshard: TypeAlias = Literal["always", "never", "default"] | Annotated[int, Interval(ge=2, le=2**24)]
LaunchGraphs: TypeAlias = Literal["none", "router", "partial", "full"]
Allocator: TypeAlias = Literal["segments", "expandable_segments"]
DEFAULT_AXIS_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")
_grid, _stages = partial(Option, group="Context and SUMMA"), partial(Option, group="Stages")
_replay, _experts = partial(Option, group="Recompute"), partial(Option, group="Experts")
_ranks, _host = partial(Option, group="Ranks and overlap"), partial(Option, group="Memory")


class Recompute(SpecStruct, frozen=True, kw_only=True):
    """What is computed again in backward instead of being kept.

    `selective` drops what the named modules save on every layer; `full` keeps only a layer's input; `policy`
    keeps the input and the results that a named policy lists.
    """

    granularity: Annotated[Literal["none", "selective", "full", "policy"], Option("Recomputed activations.",
        flag="recompute", choices=("none", "selective", "full"), label="Recompute")] = "none"  # fmt: skip
    """Activation recomputation in backward: none, the named `modules` of every layer (selective), whole layers (full),
    or all but what a named `policy` keeps."""
    policy: Annotated[RematPolicy | None, _replay("Named policy: what is kept, the rest is replayed.",
        granularity="policy")] = None  # fmt: skip
    """Named policy of MaxText, or PyTorch's selective checkpoint per operator: it lists what is kept; everything else
    is recomputed. custom keeps what `kept` lists."""
    kept: tuple[KeptName, ...] = ()
    """Results that the policy custom keeps in addition to the layer's input, by MaxText's names."""
    modules: Annotated[tuple[Module, ...], _replay("Modules under selective, such as core_attn,mlp.", "A,B",
        granularity="selective")] = ()  # fmt: skip
    """Modules that selective recompute drops: core_attn, layernorm, mlp, mla_up_proj, moe, moe_act, shared_experts."""
    num_layers: Annotated[OptionalExtent | None,
        _replay("Under full, the first layers of each virtual stage.", flag="recompute-layers",
        granularity="full")] = None  # fmt: skip
    """First layers of each virtual stage that full recompute replays; by default all (Megatron-LM's block method)."""
    stops_early: bool = False
    """`full` replays only what backward needs: PyTorch's checkpoint without reentry stops at the last tensor that
    was kept, and XLA drops dead code; Megatron-LM's runs the whole layer again."""
    layer_ids: Annotated[tuple[OptionalExtent, ...], _replay("Under full, these layers, numbered from 0.",
        "0,1,2,3", granularity="full")] = ()  # fmt: skip
    """Layers that full recompute replays, numbered from 0; multi-token prediction layers follow those of the decoder
    (Primus). If none are listed, `num_layers` applies."""
    towers: bool | None = None
    """Whether all layers of a vision tower are recomputed in the same way (Megatron-LM's --recompute-vision); None does
    as the decoder's where all of those are."""
    unit: Annotated[Extent, _replay("Under full, layers that share one kept input.", granularity="full")] = 1
    """Consecutive layers that share one kept input under full recompute and are recomputed together (Megatron-LM's
    uniform method)."""

    def __post_init__(self) -> None:
        """Refuse layers chosen in two ways, what is listed twice, and names that no policy asks for."""
        for name in ("kept", "modules", "layer_ids"):
            listed: tuple[object, ...] = getattr(self, name)
            if twice := [item for at, item in enumerate(listed) if item in listed[:at]]:
                raise given_twice(f"{twice[0]} in recompute.{name}")
        if self.kept and self.policy != "custom":
            raise required_with("the policy custom", "recompute.kept", self.policy or "none")
        if self.layer_ids and (self.num_layers is not None or self.unit > 1):
            raise conflicts(["recompute.layer_ids", "num_layers", "unit"])
        if self.unit > 1 and self.granularity != "full":
            raise required_with("the granularity full", "recompute.unit", self.granularity)

    @property
    def of_towers(self) -> Recompute:
        """What is recomputed of a vision tower's layers."""
        takes_all = self.takes_all if self.towers is None else self.towers
        return replace(self, num_layers=None, layer_ids=(), unit=1) if takes_all else Recompute()

    @property
    def takes_all(self) -> bool:
        """Whether every layer is recomputed in the same way."""
        return self.num_layers is None and not self.layer_ids and self.unit == 1

    @property
    def selection(self) -> Recompute:
        """Which layers it takes, whatever it does with them."""
        return Recompute(
            granularity="full", num_layers=self.num_layers, layer_ids=self.layer_ids, unit=self.unit
        )


class Overlap(SpecStruct, frozen=True, kw_only=True):
    """Which communication the framework lets run beside compute."""

    grad_reduce: bool = True
    """Data-parallel gradient reduction behind the last micro-batch's backward."""
    param_gather: bool = True
    """Gather of updated parameters (ZeRO-1/2) behind the first forward; FSDP prefetch (ZeRO-3)."""
    tensor: bool = False
    """Tensor-parallel collectives pipelined with their matrix multiplication."""
    pipeline: bool = True
    """Stage-to-stage sends behind compute (interleaved schedules only, as in Megatron)."""
    expert: Annotated[bool, _experts("Expert exchange behind another micro-batch.", flag="expert-overlap",
        experts=True)] = False  # fmt: skip
    """Expert dispatch and combine behind the pass of another micro-batch in the other direction, or behind the other
    half of the same (`kernels.halves_cross`)."""
    shared_experts: bool = False
    """Expert dispatch and combine behind the shared experts of the same layer."""
    bubbles: bool = False
    """Once-per-step data-parallel traffic also behind the pipeline's own waiting (1F1B): a stage that is done
    reduces while the earlier ones finish, and gathers before its first micro-batch arrives."""
    context: bool = True
    """Keys and values that ring attention sends, behind the attention of those at hand; false sends them first."""


class Routing(SpecStruct, frozen=True, kw_only=True):
    """How evenly tokens spread over experts, and what becomes of those beyond an expert's capacity."""

    imbalance: Annotated[float, Interval(ge=1, le=1e3),
        _experts("Tokens of the fullest expert-parallel rank over the mean.", "F",
        flag="expert-imbalance")] = 1.0  # fmt: skip
    """Tokens that the fullest expert-parallel rank receives, relative to the mean; 1 is balanced. The maximum is ep, or
    experts / top-k if that is less."""
    capacity_factor: Annotated[Factor | None, _experts("Tokens an expert takes at most, over the mean.", "F",
        flag="capacity-factor")] = None  # fmt: skip
    """Maximum tokens that an expert takes from one rank, relative to the mean; the rest are dropped. By default no
    tokens are dropped."""
    dispatch: Annotated[Literal["activations", "fp8"], Option("Type in which tokens travel to experts.",
        flag="dispatch-dtype", group="Types, training")] = "activations"  # fmt: skip
    """Type in which tokens travel to experts, and gradients of results back to them; results and the gradients of
    tokens travel as activations (DeepSeek-V3: fp8 with a scale per 128 numbers)."""
    balance: Annotated[Literal["none", "aux_loss"], _experts("Loss that spreads tokens over experts.",
        flag="balance")] = "aux_loss"  # fmt: skip
    """Load-balancing loss: with aux_loss each layer sums the tokens per expert over tp x cp, the ranks that share a
    sequence (Megatron-Core's aux_loss and seq_aux_loss). A selection bias is updated with either value."""
    pad_to_capacity: Annotated[bool, _experts("Whether experts are sent their full capacity.",
        flag="pad-to-capacity")] = False  # fmt: skip
    """Every expert receives its full capacity, padded if fewer tokens chose it; needs a capacity_factor."""

    @property
    def share(self) -> float:
        """Most of the tokens that choose an expert that experts take: what capacity drops is no work."""
        return min(1.0, self.capacity_factor or 1.0)

    def __post_init__(self) -> None:
        """Refuse padding to a capacity that is not there."""
        if self.pad_to_capacity and self.capacity_factor is None:
            raise required_with("routing.capacity_factor", "routing.pad_to_capacity", fix="such as 1.0")


ALL_LAYERS = 1_000_000
"""More layers than any stage has."""


class Offload(SpecStruct, frozen=True, kw_only=True):
    """What is kept in host memory instead of the device's."""

    activation_layers: Annotated[OptionalExtent,
        _host("Layers of each stage whose saved activations go to host memory, or modules of all layers.",
        "all|N|A,B", flag="offload-activations", sibling="modules")] = 0  # fmt: skip
    """Decoder layers of each stage whose saved activations are offloaded to host memory; more than there are
    means all."""
    modules: tuple[OffloadName, ...] = ()
    """What all decoder layers send to the host: what these modules (Megatron-LM's --offload-modules) alone save, or
    results by MaxText's names."""
    module_share: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Share of each stage's layers, the first, whose `modules` go there (Megatron-LM, activation_offload_fraction)."""
    optimizer: Annotated[float, Interval(ge=0, le=1),
        _host("Share of the optimizer's states held and updated on the host.", "0-1")] = 0.0  # fmt: skip
    """Fraction of the optimizer states that the host stores and updates."""
    master: bool = True
    """The share includes the master copy; it stays with Megatron-LM's optimizer that is not precision-aware."""
    parameters: Annotated[bool,
        _host("Under zero 3: shards of weights, gradients and states on the host.")] = False  # fmt: skip
    """Under ZeRO-3: shards of weights, gradients and optimizer states on the host (FSDP's CPU offload)."""
    states: bool = True
    """`parameters` includes gradients and optimizer states; DeepSpeed's offload_param alone leaves them."""
    overlap: bool = True
    """Copies run beside compute and beside the update."""
    paged: bool = False
    """Optimizer states are in unified memory, and those that the device has no room for move to the host
    (bitsandbytes' paged optimizers); the time of moving them is not projected."""

    def __post_init__(self) -> None:
        """Refuse activations chosen in two ways."""
        if self.modules and self.activation_layers:
            raise conflicts(["offload.modules", "offload.activation_layers"])

    @property
    def activations(self) -> bool:
        """Whether any activations go to the host."""
        return self.activation_layers > 0 or bool(self.modules)

    @property
    def in_passes(self) -> bool:
        """Whether forward and backward copy anything."""
        return self.parameters or self.activations

    @property
    def updates(self) -> bool:
        """Whether the host updates anything, or receives what the device updates."""
        return self.parameters or self.optimizer > 0.0


class Share(SpecStruct, frozen=True, kw_only=True):
    """How many ranks of each axis lie together inside one network tier, for each such part of the tier inside it."""

    tp: Degree = 1
    cp: Degree = 1
    dp: Degree = 1
    pp: Degree = 1

    @property
    def num_ranks(self) -> int:
        """Ranks of all axes together."""
        return self.tp * self.cp * self.dp * self.pp

    @property
    def text(self) -> str:
        """The share as it is written: tp=4,dp=2; axes of one rank are left out."""
        named = (("tp", self.tp), ("cp", self.cp), ("dp", self.dp), ("pp", self.pp))
        return ",".join(f"{axis}={ranks}" for axis, ranks in named if ranks > 1) or "tp=1"


Placement: TypeAlias = tuple[Share, ...]
"""Shares of the network's tiers from the innermost out; the ranks that none of them names go on in the usual order."""


def check_order(order: Iterable[object]) -> None:
    """Raise if it is not an order of all axes."""
    value = list(map(str, order if isinstance(order, Iterable) else [order]))
    if sorted(value) != sorted(DEFAULT_AXIS_ORDER):
        named = ",".join(value) or "none"
        raise wrong_type("axis_order", named, f"a list of {', '.join(DEFAULT_AXIS_ORDER)}, each once")


class Layout(SpecStruct, frozen=True, kw_only=True):
    """One layout. Data parallel degree is dp_replicate x dp_shard; ep x etp fold over tp x cp x dp."""

    tp: Annotated[Degree, Option("Tensor parallel.", label="Tensor")] = 1
    """Tensor-parallel degree."""
    tp_kind: Annotated[TensorKind, _grid("Tensor-parallel split: 1-D or SUMMA (a grid of tp x cp).")] = "1d"
    """Tensor-parallel split: 1d splits weights over tp and copies them over cp (2D tensor parallelism if cp > 1); summa
    splits every matrix over the grid of tp x cp, whose parts are sent panel by panel (van de Geijn and Watts 1997).
    summa supports dense models with full attention, sp and cp_kind all_gather."""
    summa_panels: Annotated[Degree, _grid("Panels of SUMMA per block, of the longer side of the grid.",
        under=Under("tp_kind", ("summa",)))] = 1  # fmt: skip
    """Panels of SUMMA into which the longer side of the grid cuts its blocks: lcm(tp, cp) times as many steps."""
    sp: Annotated[bool, Option("Sequence parallel over tp.", phrase="no sp",
        under=Under("tp", least=2))] = True  # fmt: skip
    """Sequence parallelism: norms and residuals are split over tp along the sequence (needs tp > 1)."""
    cp: Annotated[Degree, Option("Context parallel.", label="Context")] = 1
    """Context-parallel degree."""
    cp_kind: Annotated[ContextKind, _grid("Context-parallel method.", label="Context kind", phrase="{} cp",
        under=Under("cp", least=2))] = "all_gather"  # fmt: skip
    """Context-parallel method, by which ranks see all keys and values: all-gather, a ring, an all-to-all of heads
    (ulysses), or an all-to-all in groups of `cp_inner` neighbours that a ring joins (hierarchical)."""
    cp_balanced: Annotated[bool, _grid("Causal parts of cp ranks in zig-zag.",
        under=Under("cp", least=2))] = True  # fmt: skip
    """Each context-parallel rank takes a part from either end of the sequence (zig-zag). If false, each rank takes one
    contiguous part; under a causal mask all ranks wait for the last, which has 2 − 1/cp times the mean work."""
    cp_inner: Annotated[Degree | None,
        _grid("Neighbours that exchange heads (cp-kind hierarchical); those in a node unless given.",
        under=Under("cp_kind", HALVED))] = None  # fmt: skip
    """Neighbouring context-parallel ranks that exchange heads under `cp_kind` hierarchical; all if there are fewer.
    By default as many as share the cluster's fastest tier with their tensor-parallel neighbours and divide cp."""
    ep: Annotated[Degree, Option("Expert parallel.", label="Expert", experts=True)] = 1
    """Expert-parallel degree, folded over tp x cp x dp."""
    etp: Annotated[Degree, Option("Tensor parallel of experts.", experts=True)] = 1
    """Tensor-parallel degree of experts, folded over tp x cp x dp."""
    pp: Annotated[Degree, Option("Pipeline parallel.", label="Pipeline")] = 1
    """Pipeline-parallel degree."""
    vpp: Annotated[Degree, Option("Model chunks per pipeline rank.", label="Chunks per stage")] = 1
    """Model chunks (virtual stages) per pipeline rank."""
    schedule: Annotated[str | None,
        Option("Name in `pipeline list`; 1F1B by default.",
        "NAME", label="Schedule")] = None  # fmt: skip
    """Pipeline schedule, a name of the schedule library (`pipeline list`); by default 1F1B, interleaved if vpp > 1."""
    microbatch_group: Annotated[Degree | None,
        _stages("Micro-batches that a chunk takes in a row, pp or more (vpp 2 or more); pp unless given.",
        phrase="groups of {}", under=Under("vpp", least=2))] = None  # fmt: skip
    """Consecutive micro-batches of one chunk before its rank goes on to the next chunk, if vpp > 1 (Megatron-Core's
    microbatch_group_size_per_vp_stage): from pp to all micro-batches of a step, with pp or more in the last group. The
    default is pp, which requires a multiple of pp micro-batches per step. A larger group has the same bubble and needs
    more memory."""
    sequence_pieces: Annotated[Degree, _stages("Pieces of a sequence, for schedules that cut them (seq1f1b).",
        under=Under("schedule", schedule="splits_sequences",
        text="a schedule that cuts sequences, such as seq1f1b"))] = 2  # fmt: skip
    """Pieces of equal length into which schedules that split sequences (seq1f1b) cut each sequence."""
    dp_replicate: Annotated[Degree, Option("Data parallel replicas; by default derived.")] = 1
    """Data-parallel replicas of the states; by default derived from the devices."""
    dp_shard: Annotated[Degree, Option("Ranks that share states; by default derived.")] = 1
    """Data-parallel ranks that share the states; by default derived from the devices."""
    zero: Annotated[int, Interval(ge=0, le=3),
        Option("Shard over dp: 1 optimizer, 2 + gradients, 3 + weights.", "0-3",
        label="ZeRO stage")] = 1  # fmt: skip
    """ZeRO stage: 0 replicates all states; 1 shards optimizer states, 2 also gradients, 3 also parameters (FSDP)."""
    micro_batch_size: Annotated[Degree, Option("Sequences per micro-batch and data-parallel rank.",
        label="Micro-batch")] = 1  # fmt: skip
    """Sequences per micro-batch and data-parallel rank."""
    recompute: Annotated[Recompute, Option()] = field(default_factory=Recompute)
    """Activation recomputation in backward."""
    stage_layers: Annotated[tuple[int, ...] | None,
        _stages("Layers of each pipeline rank or virtual stage, such as 16,15,15,15.",
        "16,15,15,15")] = None  # fmt: skip
    """Decoder layers of each pipeline rank, split evenly over its virtual stages, or of each virtual stage in the order
    of the model, under any schedule. By default they are distributed evenly, the remainder on the first."""
    axis_order: Annotated[tuple[Axis, ...], _ranks("Axes from the closest ranks outwards.", "tp,cp,dp,pp",
        under=Under("placement", (None, "orders"), text="no placement"))] = DEFAULT_AXIS_ORDER  # fmt: skip
    """Parallel axes from the fastest-varying rank (closest on the network) to the slowest."""
    placement: Annotated[Placement | None,
        _ranks("Ranks of each axis inside each network tier from the innermost out, instead of --axis-order.",
        "tp=4,dp=2/pp=2")] = None  # fmt: skip
    """Ranks of each axis inside each network tier, from the innermost out, instead of `axis_order`: tp=4,dp=2/pp=2 are
    4 x 2 in a node and 2 such nodes in the next tier. Each named tier is filled; the remaining ranks follow in the
    order tp, cp, dp, pp."""
    overlap: Annotated[Overlap,
        _ranks("What runs beside compute: grad_reduce, param_gather, tensor, pipeline, expert, shared_experts, "
        "bubbles, context; or none.", "A,B")] = field(default_factory=Overlap)  # fmt: skip
    """Communication that overlaps with compute: grad_reduce, param_gather, tensor, pipeline, expert (dispatch and
    combine behind another micro-batch), shared_experts (dispatch and combine behind those of the layer), bubbles
    (reductions and gathers also while the pipeline fills and drains), context (messages of ring attention)."""
    flash_attention: Annotated[bool, _host("Fused attention.")] = True
    """Fused attention; if false, attention scores are materialised in memory."""
    kernels: Annotated[Kernels, Option()] = field(default_factory=Kernels)
    """Kernels of the framework."""
    reshard: Annotated[Reshard,
        _ranks("Under zero 3: whether weights are sharded again after forward, or over how many neighbours.",
        "default|always|never|N", under=Under("zero", (2, 3), text="zero 2 or 3"))] = "default"  # fmt: skip
    """Under ZeRO-3: whether weights are resharded after forward. never gathers them once per step and keeps the full
    weights, and with them the unreduced gradients, as under stage 2. The default is never with pipeline stages, else
    always (torchtitan). A number, a divisor of the ranks that share them, shards them over that many neighbours until
    backward (FSDP2, ZeRO++ hpZ)."""
    software: str | None = None
    """Software stack whose fitted losses apply: a key of the run calibration's `software`, which may be of a release
    ("megatron-core@25.02"). By default what the device is usually trained with: XLA on TPUs and Trainium, Megatron-Core
    elsewhere."""
    graphs: Annotated[LaunchGraphs, _ranks("Kernel launches captured in graphs.")] = "none"
    """Kernel launches captured in graphs, which cost the host nothing: all of them (full), all but those of routed
    experts (partial), or those of the router and shared experts only (router)."""
    dispatcher: Annotated[Dispatcher, _experts("How tokens travel to experts.", label="Dispatcher",
        phrase="{}", experts=True)] = "all_to_all"  # fmt: skip
    """How tokens are sent to experts: every copy (all_to_all), or once to each device and node (deepep, or hybridep
    with its larger buffers)."""
    routing: Annotated[Routing, Option()] = field(default_factory=Routing)
    """How evenly tokens spread over experts."""
    offload: Annotated[Offload, Option()] = field(default_factory=Offload)
    """What is stored in host memory."""
    allocator: Annotated[Allocator, _host("How PyTorch's allocator takes memory.")] = "segments"
    """How PyTorch's allocator takes memory: in segments of fixed size (its default), or in segments that grow
    (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), which fragment less."""

    def __post_init__(self) -> None:
        """Refuse an order that is no order of all axes."""
        check_order(self.axis_order)

    def __str__(self) -> str:
        """Return the layout on one line, without what has its default."""
        return one_line(self)

    @property
    def rank_order(self) -> str:
        """The order of the ranks as it is written: tp-cp-dp-pp, or tp=4,dp=2 with / between tiers."""
        if self.placement is None:
            return "-".join(self.axis_order)
        return "/".join(share.text for share in self.placement)

    @property
    def rank_layers(self) -> tuple[int, ...] | None:
        """Decoder layers of each pipeline rank, where `stage_layers` gives them."""
        stage_layers = self.stage_layers
        return stage_layers and tuple(sum(stage_layers[rank :: self.pp]) for rank in range(self.pp))

    @property
    def dp(self) -> int:
        """Data-parallel degree of everything but experts."""
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> int:
        """Devices this layout occupies."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def expert_dp(self) -> int:
        """Data-parallel degree of expert parameters."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)
