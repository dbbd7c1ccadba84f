"""`forescale trace`: record the operators of a model from its own code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forescale.atomic_write import writable
from forescale.cli.console import say, show
from forescale.cli.declare import Bounded, argument, option
from forescale.cli.formats import Answer
from forescale.cli.output import OutputOptions
from forescale.errors import needing, wrong_type
from forescale.limits import COUNT, Interval
from forescale.report.document import View, line, table
from forescale.struct import attributes
from forescale.units import counted

USUAL_LENGTH = 4096
PRECISIONS = "bf16,autocast"
TARGETS = "q_proj,k_proj,v_proj,o_proj"
RANK = Interval(gt=0, le=2**16)


def styles_of(text: str | None) -> dict[str, str] | None:
    """Return the styles that a text of `--tp-plan` gives by pattern; none for those of the model's class."""
    if text in (None, "model"):
        return None if text is None else {}
    parts = [part.partition("=") for part in _listed(text or "")]
    if not all(style for _, _, style in parts):
        raise wrong_type("--tp-plan", text, "model, or PATTERN=STYLE,... such as attn.qkv=colwise")
    return {pattern.strip(): style.strip() for pattern, _, style in parts}


def trace_command(
    *,
    source: str = argument(
        "A config.json of transformers, a folder with one, the id of a cached model, or FILE.py:FUNCTION that "
        "returns a torch.nn.Module.",
        "MODEL",
        default=...,
    ),
    save: Path = option("Where the trace is written.", "FILE.json", flag="--save -o", default=...),
    seq_len: int = option(
        "Sequence length that the valid range includes.", "TOKENS", default=USUAL_LENGTH, check=Bounded(COUNT)
    ),
    precision: str = option(
        "Precisions to trace: bf16 (parameters in bf16), autocast (parameters in fp32 under autocast to bf16), fp32.",
        "LIST",
        default=PRECISIONS,
    ),
    attention: str | None = option(
        "Attention implementation: sdpa or eager; by default the model's.", "NAME"
    ),
    kernels: str = option(
        "Kernels of state-space layers and linear attention: library (mamba-ssm, fla and others), or torch for what "
        "transformers runs without them.",
        "NAME",
        default="library",
    ),
    lora_rank: int | None = option(
        "Train adapters of this rank, as PEFT adds them, and freeze all else.", check=Bounded(RANK)
    ),
    lora_targets: str = option("Linear layers with adapters.", "LIST", default=TARGETS),
    tp_plan: str | None = option(
        "Trace tensor parallelism too: model (the plan of its class), or PATTERN=STYLE,... of linear layers.",
        "PLAN",
    ),
    trust_remote_code: bool = option("Run code that comes with the model's configuration.", default=False),
    printed: OutputOptions,
) -> None:
    """Record the operators of a model from its own code, without weights or a GPU.

    One forward and backward of each kind of block runs on fake tensors. The file takes the place of MODEL in project,
    memory, search and explain, also where torch is not installed. Needs the extra `trace` (torch and transformers).
    """
    from forescale.frameworks.traces import save_trace
    from forescale.graph.recorded import with_adapters
    from forescale.spec.workload import Precision, Trainable

    writable(save)
    trace_source = tracer()
    model = trace_source(
        source,
        seq_len=seq_len,
        precisions=_listed(precision),
        attention=attention,
        kernels=kernels,
        frozen=lora_rank is not None,
        trust_remote_code=trust_remote_code,
        tp_plan=styles_of(tp_plan),
        progress=lambda line: say(line, error=True),
    )
    if lora_rank is not None:
        targets: Any = tuple(_listed(lora_targets))
        model = with_adapters(model, Trainable(lora_rank=lora_rank, lora_targets=targets), Precision())
    save_trace(model, save)
    show(Answer(view=lambda: _view(model, save), document=lambda: _summary(model, save)), printed)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def tracer() -> Any:  # noqa: ANN401  (a function that needs torch)
    """Return what traces, which needs torch."""
    with needing("trace", "forescale trace"):
        from forescale.trace import trace_source
    return trace_source


def _summary(model: Any, path: Path) -> dict[str, Any]:  # noqa: ANN401
    return {
        "schema": "forescale.trace_summary/1",
        "file": str(path),
        **attributes(model, "model=name", "source"),
        **attributes(model.traces[0], "num_parameters"),
        **attributes(model, "num_layers"),
        "traces": [
            {
                **attributes(trace, "precision", "torch", "transformers", "attention", "experts", "kernels"),
                "blocks": {name: trace.layers.count(name) for name in trace.blocks},
                "launches": {name: block.num_launches for name, block in trace.blocks.items()},
            }
            for trace in model.traces
        ],
    }


def _view(model: Any, path: Path) -> View:  # noqa: ANN401
    rows = []
    for trace in model.traces:
        kinds = ", ".join(f"{trace.layers.count(name)} × {name}" for name in trace.blocks)
        launches = sum(trace.blocks[name].num_launches for name in trace.layers)
        launches += trace.embedding.num_launches + trace.head.num_launches
        rows.append((trace.precision, kinds, f"{launches:,}"))
    first = model.traces[0]
    kernels = (line(f"kernels of {first.kernels}"),) if first.kernels else ()
    return View(
        title=model.name,
        lead=f"{model.traces[0].num_parameters:,} parameters · {counted(model.num_layers, 'block')} · {model.source}",
        contents=(
            table("<precision", "<blocks", "launches per micro-batch", rows=rows),
            *kernels,
            line(f"written to {path}; to project it:"),
            line(f"forescale project {path} --cluster NAME --seq-len N --framework transformers"),
        ),
    )
