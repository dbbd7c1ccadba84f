"""Kernels of a framework, and how it stores what they read: fields that change memory and time, not the layout."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from forescale.limits import Measure, OptionalExtent
from forescale.spec.option import Option
from forescale.struct import SpecStruct

CrossEntropy: TypeAlias = Literal[
    "vocab_parallel", "native", "fused", "fused_linear", "compiled", "eager", "loss_parallel"
]
CompileMode: TypeAlias = Literal["none", "default", "reduce-overhead"]
FsdpUnit: TypeAlias = Literal["layer", "model"]
GradientSum: TypeAlias = Literal["in_product", "after_product", "apart"]


class Kernels(SpecStruct, frozen=True, kw_only=True):
    """Which kernels the framework trains with, as far as they keep different tensors."""

    cross_entropy: CrossEntropy = "vocab_parallel"
    """vocab_parallel keeps an fp32 softmax (Megatron-LM); native makes it beside the fp32 logits (Megatron-LM's
    jitted loss); fused turns the logits into their gradient in place (Transformer Engine, Liger); fused_linear does so
    with a chunk of them at a time and keeps the gradients of the head's input and weight (Liger); compiled keeps
    the logits and makes their gradient beside them (torch.compile); eager makes fp32 logits and keeps their
    log-softmax (PyTorch); loss_parallel does so on logits split over tp, step by step (PyTorch's DTensor)."""
    compile: Annotated[
        CompileMode,
        Option("Mode of torch.compile, for recorded models.", flag="compile", group="Ranks and overlap"),
    ] = "none"
    """torch.compile of Hugging Face's model code, where its operators were recorded: Inductor fuses kernels and saves
    less for backward; reduce-overhead launches CUDA graphs too. Operators that were not recorded are not changed."""
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
    fused_router: bool = True
    """Scores, top-k and the auxiliary loss of a router are a few kernels (Transformer Engine, under Megatron-Core's
    moe_router_fusion); False takes PyTorch's operators one by one."""
    wide_router: bool = False
    """The gradients of a router's product are made in fp32, of a copy of its input, and narrowed (Megatron-Core's
    moe_router_dtype fp32)."""
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
    frees_gradients: bool = False
    """Gradients are freed after the update, and backward makes those of one layer after the other (Megatron-LM with
    torch's FSDP2)."""
    flat_gradients: bool = False
    """Shards of gradients are one flat tensor from stage 2 on: all of it is there from a backward's first gradient on,
    and under stage 3 it is never freed; below stage 3 overlapped reductions have two buckets (DeepSpeed)."""
    offloads_gradients: bool = False
    """From stage 2 on shards of gradients go to the host as they are reduced, where the optimizer is there (DeepSpeed);
    False keeps them on the device until the update (Megatron-Core)."""
    sub_group_elements: Measure = 0.0
    """Parameters of a rank that an update takes at a time under stage 3 (DeepSpeed's sub_group_size): fp32 gradients,
    and what steps of the optimizer make, exist for so many; 0 is all of them."""
    updates_in_backward: bool = False
    """Backward updates each parameter as soon as it has its gradient, and frees that (torchtune's optimizer_in_bwd):
    one gradient exists at a time."""
    replica_buckets: bool = False
    """Without sharded states (zero 0) replicas sum gradients in flat buckets of the type that backward makes, in
    addition to the accumulated ones (PyTorch's DistributedDataParallel)."""
    keeps_whole_gradients: bool = False
    """From stage 2 on the gradients of all micro-batches add up unsharded and are reduced with the last (FSDP in
    no_sync, as accelerate accumulates); False reduces them after each micro-batch."""
    keeps_layer_inputs: bool = False
    """From stage 2 on the inputs of frozen layers and their gradients live until backward ends: hooks of the units on
    leaves of reentrant checkpoints hold both (FSDP before FSDP2)."""
    broadcasts_updates: bool = False
    """Under zero 1 and 2 states are dealt to ranks by whole tensors: gradients are all-reduced, and each rank
    broadcasts what it updated (InternEvo); False scatters and gathers equal shares (Megatron-Core, DeepSpeed)."""
    flat_update: bool = False
    """Below stage 3 the update copies its gradients to one flat fp32 tensor, unless product gradients are kept, which
    finds no room among freed activations (DeepSpeed); other optimizers go tensor by tensor."""
    fused_update: bool = True
    """The update is one kernel that reads and writes each state once; False is a kernel for each of its steps
    (PyTorch's foreach implementation, Composer's optimizers)."""
    updates_together: bool = False
    """Each of these kernels runs on all parameters at once, so the roots of all second moments exist together
    (PyTorch's foreach implementation); others go tensor by tensor (Composer)."""
    bucket_elements: Annotated[Measure, Option("Elements of a bucket of gradients, below zero 3; by default a layer's.",
        "N", flag="bucket-elements", group="Ranks and overlap")] = 0.0  # fmt: skip
    """Elements of the buckets in which gradients are reduced below stage 3 (PyTorch's bucket_cap_mb over the bytes of
    an element, DeepSpeed's reduce_bucket_size): one message each, and the first begins when its bucket is full. 0
    prices the gradients of a stage as one message whose last layer hides behind nothing. From stage 1 on there are
    buffers of that size in the type of gradients, and so many updated parameters are received at once
    (allgather_bucket_size)."""
    reduces_every_microbatch: Annotated[bool, Option("Reduce gradients after every micro-batch, without no_sync.",
        flag="reduce-every-microbatch", group="Ranks and overlap")] = False  # fmt: skip
    """Gradients are reduced after every micro-batch below stage 3 (PyTorch's DistributedDataParallel without no_sync),
    each time behind its backward only; False adds them up and reduces them once per step."""
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
    fsdp_unit: Annotated[
        FsdpUnit,
        Option("Under zero 2 and 3, what FSDP gathers at once.", flag="fsdp-unit", group="Memory"),
    ] = "layer"
    """Under zero 2 and 3, what is gathered and reduced at once: a layer, or the whole model (FSDP without a policy of
    wrapping, or with one that no class matches). The step time is that of layers."""
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
    quantises_experts: bool = True
    """Routed experts are quantised as other frozen matrices are; False leaves them in the type of activations
    (bitsandbytes replaces linear layers, and transformers keeps the experts of a layer in one parameter since 5.0)."""
    fused_grouped_mlp: bool = False
    """Under MXFP8 and NVFP4 the first product of routed experts, its activation (gated, or `weighted_ungated`) and the
    quantisation of the result are one kernel, as are the gradient of the second product, of the activation and its
    quantisation (Transformer Engine's op fuser with NVTE_CUTEDSL_FUSED_GROUPED_MLP). The activation of dense
    feed-forwards under MXFP8 quantises its result and its gradient itself."""
    paged_stash: Measure = 0.0
    """Rows for which a buffer has room of what the fused products of routed experts keep for backward, over those of
    an even routing: kernels copy it there behind the next layer, and back ahead of its backward (Megatron-Core's
    moe_paged_stash); 0 leaves it where forward made it."""
    narrow_attention: Annotated[bool, Option(keys=("megatron.fp8_dot_product_attention",))] = False
    """Under 8- and 4-bit recipes attention multiplies in fp8, its softmax in fp32
    (Transformer Engine's fp8_dot_product_attention)."""
    narrow_head: Annotated[bool, Option(keys=("megatron.fp8_output_proj",))] = False
    """Under MXFP8 the output projection onto the vocabulary multiplies in MXFP8, too, unless it shares the embedding's
    weight (Megatron-Core's fp8_output_proj); False leaves it in 16 bits."""
    pads_vocabulary: bool = True
    """Embedding and head are padded to a multiple of the model's `vocab_multiple` times tp (Megatron-LM); False only to
    equal parts over tp."""
    cuts_vision: bool = False
    """Tensor parallelism cuts a vision tower as it cuts the language model (Megatron-LM); False gives every rank all of
    it (Megatron-Bridge, which takes towers from transformers)."""
    deterministic: Annotated[bool, Option(keys=("megatron.deterministic_mode",))] = False
    """Deterministic algorithms, for which the matrix library is given a larger workspace: the host takes longer, and so
    does the backward pass of fused attention."""
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
    attention_mask: Annotated[bool, Option(keys=("megatron.create_attention_mask_in_dataloader",))] = False
    """Micro-batches bring their mask, a byte for each query and key of a sequence, which lives until the loss is made
    (Megatron-LM's data loader, unless --no-create-attention-mask-in-dataloader)."""
