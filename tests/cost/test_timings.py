"""Rows of kernel tables as operators and seconds, worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.errors import raises

from forescale.catalogue.clusters import load_cluster, load_device
from forescale.cost.timings import BlockTiming, MeasuredCollective, batches, pooled, read_kernels, stack
from forescale.errors import ReaderError

COLUMNS = (
    "id,hardware,kind,op,dtype,m,n,k,groups,batch,heads,kv_heads,qk_head_dim,v_head_dim,seq_len,causal,"
    "measured_tflops,time_us,library,notes"
)  # fmt: skip


def read(tmp_path, device=None, **row):
    """Return what one row of a table says."""
    usual = {"id": "TABLE-1", "hardware": "H100", "dtype": "bf16", "time_us": "50"}
    cells = usual | {name: str(value) for name, value in row.items()}
    path = tmp_path / "kernels.csv"
    path.write_text(f"{COLUMNS}\n{','.join(cells.get(name, '') for name in COLUMNS.split(','))}\n")
    (result,) = read_kernels(path, {"H100": device or load_device("h100-sxm")})
    return result


GEMM = {"kind": "gemm", "m": 30, "n": 20, "k": 7}
ATTENTION = {
    "kind": "attention_fwd", "batch": 3, "heads": 8, "kv_heads": 2, "qk_head_dim": 16, "v_head_dim": 24, "seq_len": 40
}  # fmt: skip


def test_seconds_are_given_or_follow_from_a_rate(tmp_path):
    """2 · 30 · 20 · 7 = 8,400 FLOP at 2e-6 TFLOP/s take 4.2 ms."""
    assert read(tmp_path, **GEMM).seconds == pytest.approx(50e-6)
    assert read(tmp_path, **GEMM, time_us="", measured_tflops="2e-6").seconds == pytest.approx(8400 / 2e6)
    assert read(tmp_path, **GEMM, batch=5, time_us="", measured_tflops="2e-6").seconds == pytest.approx(
        5 * 4.2e-3
    )
    assert read(tmp_path, **GEMM).table == "TABLE"


@pytest.mark.parametrize(
    ("dtype", "notes", "accumulated"),
    [
        ("bf16", "", 0.0),
        ("bf16 with fp32 output", "", 2.0),  # 4 bytes written instead of 2
        ("bf16 with fp32 output", "accumulate=True", 6.0),  # and 4 read
        ("bf16", "accumulate=True", 0.0),
    ],
)
def test_products(tmp_path, dtype, notes, accumulated):
    (op,) = read(tmp_path, **{**GEMM, "dtype": dtype, "notes": notes}).ops
    assert (op.m, op.n, op.k, op.batch, op.dtype, op.accumulate_bytes) == (30, 20, 7, 1, "bf16", accumulated)


@pytest.mark.parametrize(
    ("dtype", "name", "moved", "passes"),
    [
        # Written; what it reads of so small an input is in the L2, from the call before.
        ("fp8, activation quantisation included", "fp8", 1.4, 3),
        ("mxfp8, activation quantisation included", "mxfp8", 3, 1),
        ("fp8 128-block, activation quantisation included", "fp8_blockwise", 3, 1),
    ],
)
def test_quantisation_that_was_timed_too(tmp_path, dtype, name, moved, passes):
    result = read(tmp_path, **{**GEMM, "dtype": f'"{dtype}"'})
    (cast,) = result.extra
    assert (result.ops[0].dtype, cast.bytes_moved, cast.kernels, cast.family) == (
        name,
        moved * 210,
        passes,
        "cast",
    )
    assert read(tmp_path, **{**GEMM, "dtype": "fp8"}).extra == ()


@pytest.mark.parametrize(
    ("m", "k", "n", "kept", "reads"),
    [
        # 2mk + mk + nk + 2mn of a call, and 2mk of its input, in MB: 3 + 1 + 2, and 2.
        (1000, 1000, 1000, 6.1e6, 0),
        (1000, 1000, 1000, 5.9e6, 1),
        (1000, 1000, 1000, 2.1e6, 1),
        (1000, 1000, 1000, 1.9e6, 2),
        (2000, 500, 1000, 7.6e6, 0),
        (2000, 500, 1000, 7.4e6, 1),
    ],
)
@pytest.mark.parametrize(("name", "share"), [("l40s", 1.0), ("h100-sxm", 0.5)])
def test_a_cast_reads_what_the_l2_has_lost(tmp_path, name, share, m, k, n, kept, reads):
    """For the maximum and for the cast, 2 bytes each; Hopper's L2 is two halves with the same in both."""
    device = replace(load_device(name), l2_bytes=kept / share)
    parts = {**GEMM, "dtype": '"fp8, activation quantisation included"', "m": m, "k": k, "n": n}
    (cast,) = read(tmp_path, device=device, **parts).extra
    assert cast.bytes_moved == pytest.approx(1.4 * (2 * reads + 1) * m * k)


@pytest.mark.parametrize(
    ("op", "notes", "contract", "accumulated"),
    [
        ("fwd", "", "k", 0.0),
        ("bwd_grad_w", "accumulate=True", "m", 6.0),
        ("bwd_grad_w", "accumulate=True main_grad=bf16", "m", 2.0),
        ("bwd_grad_x", "", "k", 0.0),
    ],
)
def test_experts(tmp_path, op, notes, contract, accumulated):
    """Rows are those of one group: 4 x 30."""
    row = {**GEMM, "kind": "grouped_gemm", "groups": 4, "op": op, "notes": notes}
    result = read(tmp_path, **row)
    (experts,) = result.ops
    assert (experts.groups, experts.m, experts.n, experts.k) == (4, 120, 20, 7)
    assert (experts.contract, experts.accumulate_bytes) == (contract, accumulated)
    assert read(tmp_path, **row, time_us="", measured_tflops="2e-6").seconds == pytest.approx(4 * 4.2e-3)


@pytest.mark.parametrize(("causal", "pairs"), [("y", 800), ("n", 1600)])
@pytest.mark.parametrize(
    ("kind", "passes", "forwards"),
    [
        ("attention_fwd", (False,), 1.0),
        ("attention_bwd", (True,), 2.5),
        ("attention_fwd+bwd", (False, True), 3.5),
    ],
)
def test_attention(tmp_path, causal, pairs, kind, passes, forwards):
    """Half of 40 x 40 pairs; published rates count two and a half forwards for a backward."""
    row = {**ATTENTION, "kind": kind, "causal": causal}
    result = read(tmp_path, **row)
    assert tuple(op.backward for op in result.ops) == passes
    op = result.ops[0]
    assert (op.batch, op.heads, op.kv_heads, op.q_len, op.kv_len) == (3, 8, 2, 40, 40)
    assert (op.qk_dim, op.v_dim, op.pairs, op.causal, op.flash) == (16, 24, pairs, causal == "y", True)
    timed = read(tmp_path, **{**row, "time_us": "", "measured_tflops": "2e-6"})
    assert timed.seconds == pytest.approx(forwards * 2 * 3 * 8 * pairs * (16 + 24) / 2e6)
    assert timed.extra == ()


def test_attention_of_the_serving_operator_writes_a_cache(tmp_path):
    """Queries of 8 heads, keys and values of 2, of 40 tokens of 3 sequences: 2 bytes read and 2 written."""
    (cache,) = read(tmp_path, **ATTENTION, op="context incl. KV-cache write").extra
    assert (cache.bytes_moved, cache.family, cache.kernels) == (4 * 3 * 40 * (8 + 2 * 2) * 16, "permute", 2)
    whole = {name: value for name, value in ATTENTION.items() if name != "kv_heads"}
    assert read(tmp_path, **whole, library="PyTorch unfused").ops[0].kv_heads == 8
    assert not read(tmp_path, **whole, library="PyTorch unfused").ops[0].flash


def test_rows_that_differ_in_extents_only_are_one_batch(tmp_path):
    rows = [
        read(tmp_path, **{**GEMM, "m": m, "dtype": dtype})
        for m, dtype in ((1, "bf16"), (2, "bf16"), (3, "fp8"))
    ]
    together = batches(rows)
    assert [batch.ops[0].m.tolist() for batch in together] == [[1, 2], [3]]
    assert together[0].seconds.tolist() == pytest.approx([50e-6, 50e-6])


def test_loops_of_rows_are_known_for_all_or_for_none(tmp_path):
    """Rows that say how long they were timed, after how long a load, are a batch of their own."""
    row = read(tmp_path, **GEMM)
    timed = [replace(row, loop=(load, length)) for load, length in ((0.5, 2.0), (1.5, 4.0))]
    plain, known = batches([row, *timed])
    assert (len(plain.ids), plain.loop) == (1, None)
    assert [item.tolist() for item in known.loop] == [[0.5, 1.5], [2.0, 4.0]]


def test_messages_of_few_and_many_nodes_are_priced_on_a_cluster_that_holds_all():
    """An all-reduce of 8 ranks in a node, and of 8 on 4 nodes of 8 devices: 32 devices."""
    rows = [
        MeasuredCollective(
            kind="all_reduce", num_bytes=1e6, num_ranks=8, ranks_per_node=item, seconds=item * 1e-6
        )
        for item in (8, 2)
    ]
    (result,) = stack(load_cluster("h100-sxm", 8), rows)
    assert result.cluster.num_devices == 32
    (nodes, apart), *_ = result.group.outer
    assert (result.group.size.tolist(), nodes.tolist(), apart.tolist()) == ([8, 2], [1, 4], [8, 8])


def test_repeats_of_one_timing_are_pooled():
    """The median of medians, the widest spread, and the repeats of all; a row that gives none is one."""
    one = BlockTiming(kind="head", part="forward", seconds=2.0, p10_s=1.5, p90_s=2.5, repeats=10)
    others = (
        replace(one, seconds=3.0, p10_s=2.8, p90_s=None, repeats=None),
        replace(one, seconds=7.0, p10_s=6.0, p90_s=9.0),
    )
    apart = replace(one, part="backward")
    together, alone = pooled((one, *others, apart))
    assert together == replace(one, seconds=3.0, p10_s=1.5, p90_s=9.0, repeats=21)
    assert alone is apart


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({**GEMM, "kind": "gem"}, "line 2, column kind: "),
        ({**GEMM, "dtype": "bf17"}, "not_one_of dtype"),
        ({**ATTENTION, "causal": "maybe"}, "not_one_of causal"),
    ],
)
def test_words_that_are_none_of_the_tables_are_refused(tmp_path, cells, text):
    with raises(ReaderError, text) as refused:
        read(tmp_path, **cells)
    assert "line 2, column" in str(refused.value)


@pytest.mark.parametrize(("word", "pairs"), [("y", 800), ("true", 800), ("1", 800), ("n", 1600), ("", 1600)])
def test_whether_attention_is_causal_is_said_in_any_usual_word(tmp_path, word, pairs):
    (op,) = read(tmp_path, **{**ATTENTION, "causal": word}).ops
    assert op.pairs == pairs
