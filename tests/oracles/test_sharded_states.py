"""Bytes of parameters, gradients and optimizer states per rank, against torch's FSDP2 and DTensor shards.

torch's `fake` process group plays every world size in one process: collectives return at once, shards are real.
"""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.distributed as dist
from tests.small import cluster
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import LlamaConfig, LlamaForCausalLM

from forescale.frameworks.huggingface import read_huggingface
from forescale.project import project
from forescale.spec import Layout, Precision, Workload

HIDDEN, LAYERS, HEADS, WIDTH, VOCABULARY = 512, 2, 64, 1024, 8192
CONFIG = LlamaConfig(
    hidden_size=HIDDEN,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=HEADS,
    head_dim=8,
    intermediate_size=WIDTH,
    vocab_size=VOCABULARY,
    tie_word_embeddings=False,
    max_position_embeddings=64,
)
PRECISION = Precision(parameters="bf16", gradients="bf16", master="none", moments="bf16")
COLUMNS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


@contextlib.contextmanager
def world(size, rank=0):
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def size_of(tensors):
    return sum(local(tensor).numel() * local(tensor).element_size() for tensor in tensors)


def one_step(model):
    """Make gradients and AdamW's states; return bytes of parameters, gradients, moments on this rank."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    moments = [
        value
        for state in optimizer.state.values()
        for name, value in state.items()
        if name in ("exp_avg", "exp_avg_sq")
    ]
    parameters = list(model.parameters())
    return size_of(parameters), size_of(parameter.grad for parameter in parameters), size_of(moments)


def projected(layout):
    model = read_huggingface(CONFIG.to_dict(), name="oracle", where="oracle").model
    work = Workload(seq_len=64, global_batch_size=64, precision=PRECISION)
    (stage,) = project(model, cluster(layout.num_devices), layout, work).memory.stages
    return stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes


def llama():
    with torch.device("cpu"):
        return LlamaForCausalLM(CONFIG).to(torch.bfloat16)


def tensor_plan(model):
    plan = {
        name: ColwiseParallel() if name.rsplit(".", 1)[-1] in COLUMNS else RowwiseParallel()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and name != "lm_head"
    }
    return plan | {"model.embed_tokens": RowwiseParallel(), "lm_head": ColwiseParallel()}


@pytest.mark.parametrize("size", [2, 8, 64])
def test_fully_sharded(size):
    with world(size):
        model, mesh = llama(), init_device_mesh("cpu", (size,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        measured = one_step(model)
    assert measured == projected(Layout(dp_shard=size, zero=3))


@pytest.mark.parametrize(("replicas", "shards"), [(2, 4), (8, 8)])
def test_replicas_of_shards(replicas, shards):
    with world(replicas * shards):
        mesh = init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard"))
        model = llama()
        fully_shard(model, mesh=mesh)
        measured = one_step(model)
    assert measured == projected(Layout(dp_replicate=replicas, dp_shard=shards, zero=3))


@pytest.mark.parametrize("size", [2, 8, 64])
def test_tensor_parallel(size):
    """Products, embedding and head are split over tp; norms are not."""
    with world(size):
        model = llama()
        parallelize_module(model, init_device_mesh("cpu", (size,)), tensor_plan(model))
        measured = one_step(model)
    assert measured == projected(Layout(tp=size, zero=0))


def test_tensor_parallel_inside_shards():
    with world(16):
        mesh = init_device_mesh("cpu", (4, 4), mesh_dim_names=("dp", "tp"))
        model = llama()
        parallelize_module(model, mesh["tp"], tensor_plan(model))
        fully_shard(model, mesh=mesh["dp"])
        measured = one_step(model)
    assert measured == projected(Layout(tp=4, dp_shard=4, zero=3))
