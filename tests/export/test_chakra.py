"""Execution traces decoded by protobuf's runtime, with the fields of MLCommons' schema that are written."""

from __future__ import annotations

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32
from tests.errors import raises

import forescale as fs
from forescale.errors import SpecError
from forescale.export.chakra import COMPUTE, RECEIVE, SEND, _Nodes, write_chakra
from forescale.project import project

FIELDS = {
    "AttributeProto": [("name", 1, 9, 1), ("int64_val", 9, 3, 1), ("bool_val", 27, 8, 1), ("string_val", 29, 9, 1)],
    "GlobalMetadata": [("version", 1, 9, 1)],
    "Node": [("id", 1, 4, 1), ("name", 2, 9, 1), ("type", 3, 5, 1), ("data_deps", 5, 4, 3),
             ("duration_micros", 7, 4, 1), ("attr", 10, 11, 3)],
}  # fmt: skip
"""Name, number, type and label of the fields of each message."""


def messages():
    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="et", syntax="proto3")
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, number, kind, label in fields:
            message.field.add(name=field, number=number, type=kind, label=label)
            if kind == 11:
                message.field[-1].type_name = ".et.AttributeProto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [message_factory.GetMessageClass(pool.FindMessageTypeByName(f"et.{name}")) for name in FIELDS]


def decoded(path):
    _, metadata, node = messages()
    content, place, result = path.read_bytes(), 0, []
    while place < len(content):
        size, place = _DecodeVarint32(content, place)
        kind = node if result else metadata
        result.append(kind.FromString(content[place : place + size]))
        place += size
    assert result[0].version == "0.0.4"
    return [(item, {one.name: one.int64_val or one.string_val for one in item.attr}) for item in result[1:]]


def question(**layout):
    return fs.ask("llama-3.2-1b", "h100-sxm", devices=8, seq_len=2048, global_batch_size=16, **layout)


def test_nodes_dependencies_durations_and_bytes(tmp_path):
    asked = question(tp=2, pp=2, zero=1)
    first, last = (decoded(path) for path in write_chakra(asked, tmp_path, [0, 4]))
    result = project(asked)
    assert [node.id for node, _ in first] == list(range(len(first)))
    assert all(max(node.data_deps, default=-1) < node.id for node, _ in first)
    sent, received = (
        [
            (values["comm_tag"], values["comm_size"], values["comm_dst"])
            for node, values in rank
            if node.type == kind
        ]
        for rank, kind in ((first, SEND), (last, RECEIVE))
    )
    assert sent == received
    assert len(sent) == result.num_microbatches
    assert {item[1:] for item in sent} == {(2048 * 2048 * 2 // 2, 4)}
    durations = [node.duration_micros for rank in (first, last) for node, _ in rank if node.type == COMPUTE]
    passes = sum(time.forward_s + time.backward_s for time in result.stage_times)
    others = result.time_s["optimizer"] - result.time_s["tensor_comm"]
    expected = result.num_microbatches * passes / 2 + others
    assert sum(durations) * 1e-6 / 2 == pytest.approx(expected, rel=0.02)
    gradients = next(values for node, values in first if node.name == "gradients reduce_scatter")
    assert gradients["comm_type"] == 7
    after = next(node for node, _ in last if node.type != RECEIVE)
    assert list(after.data_deps) == [next(node.id for node, _ in last if node.type == RECEIVE)]


def test_layers_are_gathered_and_replayed(tmp_path):
    replayed = question(zero=3, recompute={"granularity": "full"})
    kept, again = (decoded(write_chakra(one, tmp_path, [3])[0]) for one in (question(zero=3), replayed))
    layers = sum(node.name == "layer all_gather before forward" for node, _ in kept)
    assert layers == 16 * project(question(zero=3)).num_microbatches
    spent = sum(node.duration_micros for node, _ in again if node.name.endswith(" recompute"))
    assert spent * 1e-6 == pytest.approx(project(replayed).time_s["recompute"], rel=0.02)


def test_what_has_no_trace(tmp_path):
    with raises(SpecError, "out_of_range --ranks", value=8):
        write_chakra(question(), tmp_path, [8])
    with raises(SpecError, "unsupported_by a Chakra trace"):
        _Nodes().collective("ring", "p2p", 1.0, 1.0, "cp")
