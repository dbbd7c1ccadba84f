"""How it is laid out: degrees of every parallelism, sharding of states, recompute and order on the network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal, TypeAlias

from msgspec import field
from msgspec.structs import replace

from forescale.errors import SpecError
from forescale.limits import Devices, Extent, Factor, Interval, Measure, OptionalExtent
from forescale.numeric import Numeric
from forescale.spec.context import CONTEXT_KINDS, ContextKind, Values, inner_ranks
from forescale.spec.dispatchers import Dispatcher
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
CrossEntropy: TypeAlias = Literal[
    "vocab_parallel", "native", "fused", "fused_linear", "compiled", "eager", "loss_parallel"
]
GradientSum: TypeAlias = Literal["in_product", "after_product", "apart"]
DEFAULT_AXIS_ORDER: tuple[Axis, ...] = ("tp", "cp", "dp", "pp")


class Recompute(SpecStruct, frozen=True, kw_only=True):
    """What is computed again in backward instead of being kept.

    `selective` drops what the named modules save on every layer; `full` keeps only a layer's input; `policy`
    keeps the input and the results that a named policy lists.
    """

    granularity: Literal["none", "selective", "full", "policy"] = "none"
    policy: RematPolicy | None = None
    """MaxText's rematerialisation policies by their names, and PyTorch's selective checkpoint per operator. `custom`
    keeps what `kept` lists."""
    kept: tuple[KeptName, ...] = ()
    """Results that the policy custom keeps beside the layer's input, by MaxText's names."""
    modules: tuple[Module, ...] = ()
    num_layers: OptionalExtent | None = None
    """Layers of each virtual stage that are recomputed, its first; None is all of them (Megatron-LM's block)."""
    stops_early: bool = False
    """`full` replays only what backward needs: PyTorch's checkpoint without reentry stops at the last tensor that
    was kept, and XLA drops dead code; Megatron-LM's runs the whole layer again."""
    layer_ids: tuple[OptionalExtent, ...] = ()
    """Layers that are recomputed, by their number in the model from 0 on, multi-token prediction after the
    decoder's (Primus); none listed leaves it to `num_layers`."""
    towers: bool | None = None
    """Whether all layers of a vision tower are recomputed in the same way (Megatron-LM's --recompute-vision); None does
    as the decoder's where all of those are."""
    unit: Extent = 1
    """Consecutive layers under `full` that are replayed together, of which only the first input is kept
    (Megatron-LM's uniform)."""

    def __post_init__(self) -> None:
        """Refuse layers chosen in two ways, what is listed twice, and names that no policy asks for."""
        for name in ("kept", "modules", "layer_ids"):
            listed: tuple[object, ...] = getattr(self, name)
            if twice := [item for at, item in enumerate(listed) if item in listed[:at]]:
                raise SpecError(f"recompute.{name} lists {twice[0]} twice")
        if self.kept and self.policy != "custom":
            raise SpecError(f"recompute.kept goes with the policy custom; it is {self.policy or 'none'}")
        if self.layer_ids and (self.num_layers is not None or self.unit > 1):
            raise SpecError("recompute.layer_ids lists the layers by itself; leave out num_layers and unit")
        if self.unit > 1 and self.granularity != "full":
            raise SpecError(f"recompute.unit goes with the granularity full; it is {self.granularity}")

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
    expert: bool = False
    """Expert dispatch and combine behind the pass of another micro-batch in the other direction, or behind the other
    half of the same (`kernels.halves_cross`)."""
    shared_experts: bool = False
    """Expert dispatch and combine behind the shared experts of the same layer."""
    bubbles: bool = False
    """Once-per-step data-parallel traffic also behind the pipeline's own waiting (1F1B): a stage that is done
    reduces while the earlier ones finish, and gathers before its first micro-batch arrives."""


class Kernels(SpecStruct, frozen=True, kw_only=True):
    """Which kernels the framework trains with, as far as they keep different tensors."""

    cross_entropy: CrossEntropy = "vocab_parallel"
    """vocab_parallel keeps an fp32 softmax (Megatron-LM); native makes it beside the fp32 logits (Megatron-LM's
    jitted loss); fused turns the logits into their gradient in place (Transformer Engine, Liger); fused_linear does so
    with a chunk of them at a time and keeps the gradients of the head's input and weight (Liger); compiled keeps
    the logits and makes their gradient beside them (torch.compile); eager makes fp32 logits and keeps their
    log-softmax (PyTorch); loss_parallel does so on logits split over tp, step by step (PyTorch's DTensor)."""
    logged_losses: OptionalExtent = 0
    """Metrics that take the cross-entropy of all logits once more, eagerly, when a micro-batch's backward is over;
    its logits are held until then, and their gradient is made beside them (Composer's train_metrics)."""
    attention_kernel: Literal["", "flash-1", "flash-2"] = ""
    """FlashAttention of an older version than the software stack runs, where kernels of it were timed."""
    unpads_attention: bool = False
    """Attention copies its inputs out of a padded batch and its result back into it (flash-attn's bert_padding)."""
    copies_keys_values: bool = False
    """Where each query head has its own, keys and values are copied once more before they are rotated; queries, a view
    of all three as the product left them, keep the first copy too (nanotron)."""
    fused: bool = True
    """Norms and activations keep their inputs only; False is eager PyTorch, whose every step keeps its own."""
    fused_activations: bool = True
    """Of fused kernels, those of gated activations; False keeps both factors of the gate (nanotron)."""
    fused_softmax: bool = True
    """Scale, mask and softmax of unfused attention are one kernel; False passes over the scores for each step (XLA)."""
    score_buffer: bool = False
    """Unfused attention has another buffer as large as its scores (Megatron-LM since May 2022: matmul_input_buffer)."""
    fused_norms: bool = False
    """Norms keep their inputs only where no other kernel is fused too (torchtitan's fused_rmsnorm of early 2024)."""
    weighted_activation: bool = True
    """Gated activations of experts take the routing weight in the same kernel (Megatron-Core's of SwiGLU and quick
    GeGLU); False keeps them unweighted too."""
    weighted_ungated: bool = False
    """The same of activations without a gate (Megatron-Core's use_fused_weighted_squared_relu)."""
    limits_within: bool = True
    """The activation of experts clamps its input itself where the model limits it; False clamps and joins gate and
    value in kernels before (Megatron-Core)."""
    scales_rotary: bool = True
    """The fused rotary embedding takes a factor of its sines and cosines; False rotates step by step where the model
    has one (Megatron-Core since November 2025)."""
    joins_qkv: bool = False
    """Queries, keys and values are one parameter, and one bias, to the optimizer and to what deals them to ranks."""
    joins_gate: bool = True
    """Gate and up of a feed-forward are one parameter to them."""
    narrow_inputs: bool = True
    """Linear layers in 8 or 4 bits keep their inputs so (Transformer Engine); False keeps them wide and narrows
    them again in backward (torchao)."""
    narrow_activation_inputs: bool = False
    """Under 8- and 4-bit recipes activations of feed-forwards keep their input in fp8, with a scale per 128 numbers
    (Megatron-Core's activation_func_fp8_input_store; DeepSeek-V3, section 3.3.3)."""
    narrow_core_output: bool = False
    """Under 8- and 4-bit recipes attention's output is kept once, in 12 bits (E5M6), for its own backward and for the
    product after it (DeepSeek-V3, section 3.3.3); False keeps it as it is and narrow beside."""
    transposes_weights: bool = False
    """Backward transposes weights in 8 bits as it needs them (DeepSeek-V3), so that one copy is kept; False keeps both
    (Transformer Engine)."""
    caches_narrow_weights: bool = True
    """Weights in 8 or 4 bits are made once a step and kept beside the parameters (Transformer Engine under
    Megatron-LM); False makes them for every product (torchao)."""
    regathers_inputs: bool = True
    """Under sequence parallelism a linear layer keeps its part of the input and gathers it again in backward
    (Megatron-LM); False keeps the gathered input (PyTorch's DTensor)."""
    gradient_sum: GradientSum = "in_product"
    """What adds weight gradients to their sum: the product that makes them; what comes after it, which has made its own
    result first; or, apart, kernels of their own (PyTorch's autograd under DeepSpeed's pipeline), cast first to the
    type of the sum where both are kept."""
    dummy_gradients: bool = True
    """Where the product does, a gradient of each distinct shape of a weight stands in for those that are not made
    (Transformer Engine)."""
    keeps_product_gradients: bool = False
    """Below stage 2 gradients in the compute type stay beside their accumulated sum, which is all-reduced (DeepSpeed's
    BF16_Optimizer)."""
    replica_buckets: bool = False
    """Without sharded states (zero 0) replicas sum gradients in flat buckets of the weights' type, which stand beside
    the accumulated ones throughout (PyTorch's DistributedDataParallel)."""
    broadcasts_updates: bool = False
    """Under zero 1 and 2 states are dealt to ranks by whole tensors: gradients are all-reduced, and each rank
    broadcasts what it updated (InternEvo); False scatters and gathers equal shares (Megatron-Core, DeepSpeed)."""
    flat_update: bool = False
    """Below stage 3 the update copies its gradients to one flat fp32 tensor, unless product gradients are kept, which
    finds no room among freed activations (DeepSpeed); other optimizers go tensor by tensor."""
    fused_update: bool = True
    """The update is one kernel that reads and writes each state once; False is a kernel for each of its steps
    (PyTorch's foreach implementation, Composer's optimizers)."""
    bucket_elements: Measure = 0.0
    """Elements of reduction buckets from stage 1 on, in the type of gradients (DeepSpeed's reduce_bucket_size), and of
    updated parameters received at once (allgather_bucket_size)."""
    receives_copies: bool = False
    """Under zero 1 and 2 updated parameters are received in flat tensors, for which there is no room, and copied out
    (DeepSpeed before 2023-12, nanotron); False receives them where they are."""
    loads_all_kernels: bool = False
    """The driver's context holds every kernel of the libraries (CUDA before lazy loading); False those that ran."""
    gathers_after_update: bool = False
    """Under zero 1 and 2 updated parameters are gathered before the step ends, behind nothing (DeepSpeed)."""
    shares_messages: bool = False
    """Without sequence parallelism each tensor-parallel rank sends its share of a stage's output, which the next
    stage gathers (Narayanan et al. 2021, section 4.1)."""
    gathers_each_weight: bool = False
    """Under zero 3 each weight is gathered before its product, and the next ahead of it (XLA); False gathers a block
    and the next (FSDP)."""
    gathers_aside: bool = False
    """Under zero 3 weights are received in memory of the gathering stream, which nothing else can use, and copied out
    when the next have come (FSDP2)."""
    messages_in_turn: bool = False
    """What data-parallel ranks send of experts waits for what they send of other parameters (FSDP2's one stream of
    gathers); False has both on the way, each over its own communicator (Megatron-Core)."""
    flat_parameters: bool = False
    """The weights of a layer are views of one flat parameter: their gradients are joined to its own, divided by the
    ranks and sent as one message (PyTorch's first FSDP)."""
    gathers_ends_apart: bool = False
    """Embedding and head are groups of their own under FSDP (torchtitan since July 2025); False leaves both to the root
    of the model, which is gathered throughout, and keeps the last block gathered between its passes."""
    keeps_stage_outputs: bool = False
    """A pipeline stage keeps the output it sent until its backward (DeepSpeed; torchtitan; Megatron-LM before 2022)."""
    keeps_output_shares: bool = False
    """Where it does, without sequence parallelism, each tensor-parallel rank keeps the share that it sent and gathers
    the others for backward (DeepSpeed)."""
    deferred_head_gradients: OptionalExtent = 0
    """Micro-batches whose weight gradient of the output layer runs in the pipeline flush of (interleaved) 1F1B; more
    than a step has means all (Megatron-LM's defer_embedding_wgrad_compute and wgrad_deferral_limit)."""
    receives_ahead: bool = False
    """Gradients from the next pipeline stage have a buffer for every micro-batch of the step
    (torch.distributed.pipelining); False receives one at a time."""
    fused_rotary: bool = False
    """Latent attention rotates the rotary part of queries in place and that of keys in the kernel that splits them from
    values (Megatron-LM's apply_rope_fusion); False rotates whole queries and keys."""
    grouped_experts: bool = True
    """The products of experts run together on several streams; False runs one expert after the other."""
    expert_kernels: Literal["each", "one"] = "each"
    """Products of experts are launched one by one (Transformer Engine), or as one kernel for all of them, as are the
    casts of their inputs (Primus-Turbo)."""
    narrow_experts: bool = True
    """8- and 4-bit recipes narrow the products of routed experts too (Transformer Engine); False leaves them in the
    activations' type (Megatron-LM's grouped_gemm library, --moe-use-legacy-grouped-gemm)."""
    pads_vocabulary: bool = True
    """Embedding and head are padded to a multiple of the model's `vocab_multiple` times tp (Megatron-LM); False only to
    equal parts over tp."""
    cuts_vision: bool = False
    """Tensor parallelism cuts a vision tower as it cuts the language model (Megatron-LM); False gives every rank all of
    it (Megatron-Bridge, which takes towers from transformers)."""
    deterministic: bool = False
    """Deterministic algorithms, for which the matrix library is given a larger workspace."""
    blocking_launches: bool = False
    """The host waits for every kernel before it launches the next (CUDA_LAUNCH_BLOCKING=1)."""
    hides_input_sums: bool = True
    """Sums of input gradients over tp, and inputs gathered again, run behind the next product of backward (Megatron-LM
    since 2022, Korthikanti et al. 2022, section 4.2.2); False waits for each (Megatron-LM before, DeepSpeed's fork of
    it, PyTorch's DTensor), unless tensor-parallel collectives are pipelined with their products."""
    queued_layers: OptionalExtent = 0
    """Layers whose forward the host has launched when the device begins the first. So many stay reserved of the tensors
    that sums over tp read last: their memory is had again once the stream of messages is through with them (PyTorch's
    record_stream). 0 has them at once."""
    halves_cross: bool = False
    """What `overlap.expert` hides runs behind the other half of the micro-batch (MaxText, use_batch_split_schedule);
    False behind another micro-batch's pass in the other direction (Megatron-LM, DualPipe)."""
    runs_ahead: bool = False
    """The pipeline engine queues its messages and goes on (DeepSpeed); False waits for each exchange with a
    neighbouring stage, so that nothing hides what the engine itself does (Megatron-LM synchronises after it)."""
    dropout: bool = False
    """Attention and hidden dropout, whose masks are kept (one byte per element)."""
    attention_mask: bool = False
    """Micro-batches bring their mask, a byte for each query and key of a sequence, which lives until the loss is made
    (Megatron-LM's data loader, unless --no-create-attention-mask-in-dataloader)."""


class Routing(SpecStruct, frozen=True, kw_only=True):
    """How evenly tokens spread over experts, and what becomes of those beyond an expert's capacity."""

    imbalance: Annotated[float, Interval(ge=1, le=1e3)] = 1.0
    """Tokens that the fullest expert-parallel rank receives over the mean of the ranks; 1 is balanced."""
    capacity_factor: Factor | None = None
    """Tokens that one expert takes from one rank at most, over the mean; the rest are dropped. None drops none."""
    dispatch: Literal["activations", "fp8"] = "activations"
    """Type in which tokens travel to experts, and gradients of results back to them; results and the gradients of
    tokens travel as activations (DeepSeek-V3: fp8 with a scale per 128 numbers)."""
    balance: Literal["none", "aux_loss"] = "aux_loss"
    """The loss that spreads tokens counts those of each expert over the ranks that share a sequence (tp x cp), layer by
    layer (Megatron-Core's aux_loss and seq_aux_loss); none counts nothing. A selection bias is updated either way."""
    pad_to_capacity: bool = False
    """Every expert is sent its full capacity, padded where fewer tokens chose it; needs a capacity_factor."""

    @property
    def share(self) -> float:
        """Most of the tokens that choose an expert that experts take: what capacity drops is no work."""
        return min(1.0, self.capacity_factor or 1.0)

    def __post_init__(self) -> None:
        """Refuse padding to a capacity that is not there."""
        if self.pad_to_capacity and self.capacity_factor is None:
            raise SpecError("routing.pad_to_capacity pads to routing.capacity_factor; give one, such as 1.0")


ALL_LAYERS = 1_000_000
"""More layers than any stage has."""


class Offload(SpecStruct, frozen=True, kw_only=True):
    """What is kept in host memory instead of the device's."""

    activation_layers: OptionalExtent = 0
    """Decoder layers of each stage whose saved tensors go to the host; more than there are means all."""
    modules: tuple[OffloadName, ...] = ()
    """What all decoder layers send to the host: what these modules (Megatron-LM's --offload-modules) alone save, or
    results by MaxText's names."""
    module_share: Annotated[float, Interval(ge=0, le=1)] = 1.0
    """Share of each stage's layers, the first, whose `modules` go there (Megatron-LM, activation_offload_fraction)."""
    optimizer: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Share of the optimizer's states that are held, and updated, on the host."""
    master: bool = True
    """The share includes the master copy; it stays with Megatron-LM's optimizer that is not precision-aware."""
    parameters: bool = False
    """Stage 3: the shards of weights, gradients and all states are held on the host (FSDP's CPU offload)."""
    states: bool = True
    """`parameters` includes gradients and optimizer states; DeepSpeed's offload_param alone leaves them."""
    overlap: bool = True
    """Copies run beside compute and beside the update."""

    def __post_init__(self) -> None:
        """Refuse activations chosen in two ways."""
        if self.modules and self.activation_layers:
            msg = "offload.modules takes modules of all layers; leave out offload.activation_layers"
            raise SpecError(msg)

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
    """Raise if it is no order of all axes."""
    if sorted(value := list(map(str, order))) != sorted(DEFAULT_AXIS_ORDER):
        named = ",".join(value) or "none"
        raise SpecError(f"axis_order names each of {', '.join(DEFAULT_AXIS_ORDER)} once; got {named}")


class Layout(SpecStruct, frozen=True, kw_only=True):
    """One layout. Data parallel degree is dp_replicate x dp_shard; ep x etp fold over tp x cp x dp."""

    tp: Degree = 1
    tp_kind: TensorKind = "1d"
    """1d splits weights over tp and copies them over cp (2D tensor parallelism, where cp > 1); summa splits every
    matrix over the grid of tp x cp, and its parts travel panel by panel (van de Geijn and Watts 1997)."""
    summa_panels: Degree = 1
    """Panels of SUMMA that the longer side of the grid cuts its blocks into: lcm(tp, cp) times as many steps."""
    sp: bool = True
    """Sequence parallelism: norms and residuals are split over tp along the sequence (needs tp > 1)."""
    cp: Degree = 1
    cp_kind: ContextKind = "all_gather"
    """How context-parallel ranks see all keys and values: gathered, passed around a ring, exchanged for heads
    (ulysses), or exchanged in groups of `cp_inner` neighbours that a ring joins (hierarchical)."""
    cp_balanced: bool = True
    """Each context-parallel rank takes a part of the sequence from the front and one from the back, so that all have
    as much behind a causal mask (zig-zag); False gives out whole runs, and all wait for the rank with the last."""
    cp_inner: Degree | None = None
    """Neighbouring context-parallel ranks that exchange heads under `cp_kind` hierarchical; all if there are fewer.
    None is as many as share the cluster's fastest tier with their tensor-parallel neighbours, next to which the
    usual order of ranks places them, and divide cp."""
    ep: Degree = 1
    etp: Degree = 1
    pp: Degree = 1
    vpp: Degree = 1
    """Model chunks (virtual stages) per pipeline rank."""
    schedule: str | None = None
    """Pipeline schedule, a name of the schedule library; None is 1F1B, interleaved where vpp > 1."""
    microbatch_group: Degree | None = None
    """Micro-batches that a chunk takes in a row where vpp > 1: from pp to all of a step, pp or more in the last group
    (Megatron-Core's microbatch_group_size_per_vp_stage). None is pp, of which a step then has a multiple."""
    sequence_pieces: Degree = 2
    """Pieces of equal length that schedules on parts of sequences (seq1f1b) cut each sequence into."""
    dp_replicate: Degree = 1
    dp_shard: Degree = 1
    zero: Annotated[int, Interval(ge=0, le=3)] = 1
    """0 replicates all; 1 shards optimizer states, 2 also gradients, 3 also parameters (FSDP)."""
    micro_batch_size: Degree = 1
    recompute: Recompute = field(default_factory=Recompute)
    stage_layers: tuple[int, ...] | None = None
    """Decoder layers of each pipeline rank, cut evenly over its virtual stages, or of each virtual stage in the
    order of the model; None spreads them evenly, the remainder on the first."""
    axis_order: tuple[Axis, ...] = DEFAULT_AXIS_ORDER
    """Axes from the fastest-varying rank (closest on the network) to the slowest."""
    placement: Placement | None = None
    """Ranks of each axis that share each tier of the network, all but the outermost, which takes what is left; within
    a tier they lie in the order tp, cp, dp, pp. None leaves it to `axis_order`."""
    overlap: Overlap = field(default_factory=Overlap)
    flash_attention: bool = True
    """False materialises the attention scores."""
    kernels: Kernels = field(default_factory=Kernels)
    reshard: Reshard = "default"
    """Stage 3: whether parameters are sharded again after forward; never gathers them once and keeps them whole through
    the step, and with them the unreduced gradients, as under stage 2. The default is never with pipeline stages, else
    always (torchtitan). A number, a divisor of the ranks that share them, shards them over that many neighbours until
    backward (FSDP2, ZeRO++ hpZ)."""
    software: str | None = None
    """Software stack whose fitted losses apply: a key of the run calibration's `software`, which may be of a release
    ("megatron-core@25.02"). None is what the device is usually trained with: XLA on TPUs and Trainium, Megatron-Core
    elsewhere."""
    graphs: LaunchGraphs = "none"
    """Launches captured in graphs, which cost the host nothing: all of them, all but those of routed experts (partial),
    or those of the router and shared experts only."""
    dispatcher: Dispatcher = "all_to_all"
    """How tokens travel to experts: every copy (all_to_all), or once to each device and node (deepep, or hybridep with
    its larger buffers)."""
    routing: Routing = field(default_factory=Routing)
    offload: Offload = field(default_factory=Offload)
    allocator: Allocator = "segments"
    """How PyTorch's allocator takes memory: in segments of fixed size (its default), or in segments that grow
    (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True), which fragment less."""

    def __post_init__(self) -> None:
        """Refuse an order that is no order of all axes."""
        check_order(self.axis_order)

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
