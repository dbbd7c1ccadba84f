"""The server, driven by the SDK's own client over standard input and output."""

from __future__ import annotations

import json
import sys

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

QUESTION = {
    "model": "llama-3.1-8b",
    "cluster": "h100-sxm",
    "devices": 8,
    "seq_len": "8192",
    "global_batch_size": 64,
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 8192,
}


def driven(steps, *arguments: str):
    """Return what `steps` returns with a client of a server of its own."""

    async def run():
        command = ["-m", "forescale", "mcp", *arguments]
        server = StdioServerParameters(command=sys.executable, args=command)
        async with Client(stdio_client(server)) as client:
            return await steps(client)

    return anyio.run(run)


async def call(client, tool: str, **arguments):
    result = await client.call_tool(tool, arguments)
    return result.content[0].text, bool(result.is_error)


def test_an_agent_plans_exports_and_checks_a_run(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))

    async def steps(client):
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        found = json.loads((await call(client, "search", **QUESTION))[0])
        degrees = found["best"][0]["strategy"]
        layout = {name: degrees[name] for name in ("tp", "cp", "pp", "zero", "micro_batch_size")}
        projected = json.loads((await call(client, "project", **QUESTION, **layout))[0])
        exported = json.loads((await call(client, "export", **QUESTION, **layout, to="torchtitan"))[0])
        checked = json.loads(
            (await call(client, "check", **{**QUESTION, "model": ["llama-3.1-8b"]}, **layout))[0]
        )
        local = json.loads((await call(client, "project", **{**QUESTION, "model": "config.json"}, zero=1))[0])
        return tools, found, projected, exported, checked, local

    tools, found, projected, exported, checked, local = driven(steps, "--root", str(tmp_path))
    assert set(tools) == {"project", "memory", "search", "fit", "check", "explain", "export", "diagnose"}
    assert tools["project"].input_schema["properties"]["tp"]["type"] == "integer"
    assert "output" not in tools["export"].input_schema["properties"]
    assert projected["step_time_s"] == pytest.approx(found["best"][0]["step_time_s"])
    assert exported["schema"] == "forescale.export/1"
    assert checked["status"] == "passes"
    assert local["params"]["total"] < projected["params"]["total"]


def test_hostile_calls_get_errors_and_reach_no_file(tmp_path):
    secret = tmp_path / "secret.json"
    secret.write_text(json.dumps(CONFIG))
    root = tmp_path / "root"
    root.mkdir()
    (root / "link.json").symlink_to(secret)
    attempts = (
        ("project", {**QUESTION, "model": str(secret)}),
        ("project", {**QUESTION, "model": "../secret.json"}),
        ("project", {**QUESTION, "model": "link.json"}),
        ("project", {**QUESTION, "plan": str(secret)}),
        ("project", {**QUESTION, "sets": [f"cost.measurements=['{secret}']"]}),
        ("diagnose", {**QUESTION, "zero": 3, "measured": [str(secret)]}),
        ("project", {**QUESTION, "files": {"../../escape.json": "{}"}}),
        ("project", {**QUESTION, "files": "text"}),
        ("project", {**QUESTION, "html": str(root / "page.html")}),
        ("export", {**QUESTION, "to": "megatron", "output": str(root / "run.sh")}),
        ("project", {**QUESTION, "devices": 10**30}),
        ("project", {**QUESTION, "model": "x" * (5 << 20)}),
        ("shell", {}),
    )

    async def steps(client):
        answers = [await call(client, tool, **arguments) for tool, arguments in attempts]
        return answers, await call(client, "project", **QUESTION, zero=3)

    answers, last = driven(steps, "--root", str(root))
    assert [failed for _, failed in answers] == [True] * len(attempts)
    assert all("hidden_size" not in text and "Traceback" not in text for text, _ in answers)
    assert sorted(item.name for item in root.iterdir()) == ["link.json"]
    assert not last[1]


def test_texts_of_files_are_inputs():
    files = {"mine.json": json.dumps(CONFIG)}

    async def steps(client):
        one = await call(client, "project", **{**QUESTION, "model": "mine.json"}, files=files, zero=1)
        return one, await call(client, "project", **{**QUESTION, "model": "mine.json"}, zero=1)

    (text, failed), (_, gone) = driven(steps)
    assert (failed, gone) == (False, True)
    assert json.loads(text)["schema"] == "forescale.projection/1"
