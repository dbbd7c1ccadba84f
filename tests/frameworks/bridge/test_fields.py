"""Fields of a container as Megatron's settings: sections over each other, values as they are written."""

import pytest
from tests.errors import raises, refusal
from tests.frameworks.bridge.checkout import read

from forescale.errors import ReaderError, UnknownKeyError


def test_a_recipe_over_others_of_its_checkout_has_all_that_they_set(tmp_path):
    result = read(tmp_path, "cfg.model.tensor_model_parallel_size = 2")
    layout, work = result.strategy, result.workload
    assert (layout.tp, layout.zero, layout.micro_batch_size) == (2, 1, 1)
    assert (layout.overlap.grad_reduce, layout.overlap.param_gather) == (True, True)
    assert (work.global_batch_size, work.seq_len, work.precision.compute, work.precision.gradients) == (
        32,
        4096,
        "bf16",
        "fp32",
    )
    assert (result.model.name, result.model.num_layers, result.model.vocab_size) == ("llama-3-8b", 32, 128256)


@pytest.mark.parametrize(
    ("given", "compute", "recipe"),
    [
        ("'bf16_mixed'", "bf16", "none"),
        ("'ours-in-8-bits'", "fp8", "blockwise"),
        ("'bf16_with_mxfp8_mixed'", "mxfp8", "mxfp8"),
    ],
)
def test_precisions_are_known_by_name_those_of_the_checkout_first(given, compute, recipe, tmp_path):
    precision = read(tmp_path, f"cfg.mixed_precision = {given}").workload.precision
    assert (precision.compute, precision.recipe) == (compute, recipe)


def test_an_unknown_precision_is_refused_with_its_line(tmp_path):
    with raises(ReaderError, "not_one_of mixed_precision"):
        read(tmp_path, "cfg.mixed_precision = 'bf8'")


@pytest.mark.parametrize(
    ("lines", "dispatcher", "graphs"),
    [
        ("cfg.model.moe_token_dispatcher_type = 'flex'; cfg.model.moe_flex_dispatcher_backend = 'hybridep'", "hybridep", "none"),
        ("cfg.model.moe_token_dispatcher_type = 'flex'; cfg.model.moe_flex_dispatcher_backend = 'deepep'", "deepep", "none"),
        ("cfg.model.moe_flex_dispatcher_backend = 'hybridep'", "all_to_all", "none"),
        ("cfg.model.cuda_graph_impl = 'none'; cfg.model.cuda_graph_scope = 'full'", "all_to_all", "none"),
        ("cfg.model.cuda_graph_impl = 'transformer_engine'; cfg.model.cuda_graph_scope = ['attn', 'moe_router']", "all_to_all", "partial"),
        ("cfg.model.cuda_graph_impl = 'transformer_engine'; cfg.model.cuda_graph_scope = [Scope.moe_router]", "all_to_all", "router"),
        ("cfg.model.cuda_graph_impl = 'full_iteration'", "all_to_all", "full"),
    ],
)  # fmt: skip
def test_dispatchers_and_captured_launches(lines, dispatcher, graphs, tmp_path):
    layout = read(tmp_path, lines, base="deep_base_config").strategy
    assert (layout.dispatcher, layout.graphs) == (dispatcher, graphs)


def test_stages_that_a_function_returns_are_the_layout(tmp_path):
    result = read(tmp_path, "pass", base="deep_base_config")
    assert (result.strategy.pp, result.strategy.vpp, result.strategy.stage_layers) == (4, 1, (16, 16, 16, 13))
    assert result.model.num_mtp_layers == 1


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("cfg.model.pipeline_model_parallel_layout = [['embedding'], ['head']]", "line 7, model.pipeline_model_parallel_layout: a stage has 'head'; embedding, decoder, mtp, loss can"),
        ("cfg.model.virtual_pipeline_model_parallel_size = 2", "differs model.virtual_pipeline_model_parallel_size"),
    ],
)  # fmt: skip
def test_layouts_that_cannot_be_are_refused(line, said, tmp_path):
    with pytest.raises(ReaderError) as refused:
        read(tmp_path, line, base="deep_base_config")
    assert said in refusal(refused.value)


@pytest.mark.parametrize(
    ("lines", "grad", "param", "tensor"),
    [
        ("cfg.ddp.overlap_grad_reduce = False; cfg.ddp.overlap_param_gather = False; cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True)", True, True, True),
        ("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=False, overlap_param_gather=False)", False, False, False),
        ("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True); cfg.model.sequence_parallel = False", True, True, False),
        ("cfg.ddp.overlap_grad_reduce = False; cfg.ddp.overlap_param_gather = False; cfg.model.tp_comm_overlap = True", False, False, True),
        ("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False, overlap_grad_reduce=False)", False, True, False),
    ],
)  # fmt: skip
def test_what_overlaps_by_itself_where_overlap_is_asked_for(lines, grad, param, tensor, tmp_path):
    start = "cfg.model.tensor_model_parallel_size = 2; cfg.model.sequence_parallel = True; "
    overlap = read(tmp_path, start + lines).strategy.overlap
    assert (overlap.grad_reduce, overlap.param_gather, overlap.tensor) == (grad, param, tensor)


def test_fields_that_change_nothing_need_not_be_known(tmp_path):
    lines = "cfg.model.moe_hybridep_num_sms = unknown(); cfg.model.bias_activation_fusion = True; cfg.dataset.made_of = 4"
    assert read(tmp_path, lines).unknown == ()


@pytest.mark.parametrize(
    ("line", "kind", "code", "said"),
    [
        ("cfg.train.micro_batch_size = unknown()", ReaderError, "wrong_type", "mine.py, line 7, train.micro_batch_size: "),
        ("cfg.model.recompute_granularity = unknown()", ReaderError, "wrong_type", "line 7, model.recompute_granularity: "),
        ("cfg.model.recompute_granlarity = 'full'", UnknownKeyError, "unknown_key recompute_granlarity", "mine.py, line 7, model; did you mean recompute_granularity"),
        ("cfg.dataset.seq_lenght = 8", UnknownKeyError, "unknown_key seq_lenght", "mine.py, line 7, dataset"),
        ("cfg.ddp = unknown", ReaderError, "needs_running ddp", "mine.py, line 7: "),
        ("cfg.model.seq_length = 8192", ReaderError, "", "line 7: model.seq_length 8192 and dataset.seq_length 4096 must be the same: Megatron-Bridge refuses to start; say which with --seq-len"),
        ("if unknown(): cfg.train.global_batch_size = 64", ReaderError, "wrong_type", "train.global_batch_size: "),
        ("raise ValueError('not for this model')", ReaderError, "", "line 7: the recipe stops here: ValueError not for this model"),
        ("cfg.model.pipeline_model_parallel_layout = cfg.train.nothing", ReaderError, "wrong_type", "model.pipeline_model_parallel_layout: "),
    ],
)  # fmt: skip
def test_refusals_name_file_line_and_field(line, kind, code, said, tmp_path):
    with raises(kind, code) as refused:
        read(tmp_path, line)
    assert said in str(refused.value)


def test_the_caller_tells_a_length_that_the_recipe_leaves_open(tmp_path):
    result = read(tmp_path, "cfg.model.seq_length = 8192", over={"seq_len": 8192})
    assert result.workload.seq_len == 8192


def test_what_has_no_word_here_is_noted_only_where_it_counts(tmp_path):
    message = "not expressed: mixed_precision.disable_parameter_transpose_cache"
    for precision, noted in (("'ours_in_8_bits'", True), ("'bf16_mixed'", False)):
        lines = f"cfg.mixed_precision = get_mixed_precision_config({precision}); cfg.mixed_precision.disable_parameter_transpose_cache = True"
        assert any(message in note for note in read(tmp_path, lines).notes) is noted


def test_attention_and_the_output_projection_in_8_bits_are_read(tmp_path):
    lines = (
        "cfg.mixed_precision = get_mixed_precision_config('ours_in_8_bits'); "
        "cfg.mixed_precision.fp8_dot_product_attention = True; cfg.model.fp8_output_proj = True"
    )
    kernels = read(tmp_path, lines).strategy.kernels
    assert kernels.narrow_attention and kernels.narrow_head


@pytest.mark.parametrize(
    ("fields", "start", "end"),
    [("first_last_layers_bf16 = True", 0, 0), ("first_last_layers_bf16 = True; {}num_layers_at_end_in_bf16 = 2", 0, 2),
     ("num_layers_at_end_in_bf16 = 2", 0, 0)],
)  # fmt: skip
def test_layers_at_both_ends_stay_in_bf16(fields, start, end, tmp_path):
    place = "cfg.mixed_precision."
    lines = (
        f"cfg.mixed_precision = get_mixed_precision_config('ours_in_8_bits'); {place}{fields.format(place)}"
    )
    types = read(tmp_path, lines).workload.precision
    assert (types.num_layers_at_start_in_bf16, types.num_layers_at_end_in_bf16) == (start, end)


def test_the_allocator_is_that_of_the_environment_that_the_recipe_sets(tmp_path):
    lines = 'cfg.env_vars = {**{"A": 1}, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}'
    assert read(tmp_path, lines).strategy.allocator == "expandable_segments"


@pytest.mark.parametrize(
    ("of_ddp", "of_optimizer", "zero"), [(False, True, 1), (True, False, 1), (False, False, 0)]
)
def test_states_are_shared_where_either_section_says_so(of_ddp, of_optimizer, zero, tmp_path):
    lines = "; ".join((
        "cfg.ddp.overlap_param_gather = False",
        f"cfg.ddp.use_distributed_optimizer = {of_ddp}",
        f"cfg.optimizer.use_distributed_optimizer = {of_optimizer}",
    ))  # fmt: skip
    assert read(tmp_path, lines).strategy.zero == zero
