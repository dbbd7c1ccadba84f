"""Trace models from their own code: operators, bytes and memory of each kind of block, without weights or a GPU."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from torch import nn

from forescale.errors import ForescaleError, not_one_of
from forescale.graph.parallel import NO_PLAN, Plan, ends_of
from forescale.graph.recorded import traced_model
from forescale.spec.model import Model
from forescale.spec.trace import Trace
from forescale.trace.external import libraries_of
from forescale.trace.inputs import token_arguments
from forescale.trace.sources import TYPES, Source, source_of, source_of_config
from forescale.trace.tracing import MakeInputs, Progress, trace_module

USUAL_LENGTH = 4096
PRECISIONS = ("bf16", "autocast", "fp32")
"""Precisions that can be traced: parameters in bf16, parameters in fp32 under autocast to bf16, all in fp32."""
KERNELS = ("library", "torch")
PARAMETERS = {"bf16": "bf16", "autocast": "fp32", "fp32": "fp32"}


def trace(
    module: nn.Module,
    inputs: MakeInputs | None = None,
    *,
    seq_len: int = 4096,
    autocast: bool = False,
    loss: Callable[[Any], Any] | None = None,
    name: str = "",
    hidden_size: int = 0,
    vocab_size: int = 0,
    tp_plan: Mapping[str, str] | None = None,
    progress: Progress = lambda _: None,
) -> Model:
    """Return the model of a module, recorded on fake tensors; its parameters are replaced by fake ones.

    Parameters
    ----------
    module
        Any module; build it under `torch.device("meta")` so that it takes no memory.
    inputs
        Function of micro-batch size and sequence length that returns the arguments of the module; by default token
        ids for its first argument.
    seq_len
        Sequence length that the trace is made for.
    autocast
        Whether it trains under `torch.autocast` to bf16.
    loss
        Function of the module's result that returns a scalar; by default the result's `loss`.
    tp_plan
        Styles of linear layers, as transformers names them, by the pattern of their path.

    Raises
    ------
    ForescaleError
        If the module cannot be traced; the message names module and line.
    """
    source = Source(
        name=name or type(module).__name__,
        module=module,
        inputs=inputs or token_arguments(module),
        loss=loss,
        hidden_size=hidden_size,
        vocab_size=vocab_size or int(getattr(module, "vocab_size", 0) or 0),
        origin=type(module).__qualname__,
    )
    plan = Plan(styles=ends_of(tp_plan or {}))
    return _model([_traced(source, seq_len, autocast=autocast, progress=progress, plan=plan)], source)


def trace_source(
    text: str,
    *,
    seq_len: int = 4096,
    precisions: Sequence[str] = ("bf16", "autocast"),
    attention: str | None = None,
    frozen: bool = False,
    trust_remote_code: bool = False,
    tp_plan: Mapping[str, str] | None = None,
    kernels: str = "library",
    progress: Progress = lambda _: None,
) -> Model:
    """Return the model that a text names, traced in some precisions; see `source_of`.

    If `frozen`, no parameter is trained, as below adapters (`forescale.graph.recorded.with_adapters`). `tp_plan` are
    the styles of linear layers by pattern, for traces that tensor parallelism can split; those of the model's class if
    it is empty. `kernels` are those of the libraries that transformers uses if they are installed, or what it runs
    without them (torch).
    """
    if kernels not in KERNELS:
        raise not_one_of("kernels", kernels, KERNELS)
    traces = []
    source: Source | None = None
    for precision in precisions:
        if precision not in PRECISIONS:
            raise not_one_of("precision", precision, PRECISIONS)
        parameters = PARAMETERS[precision]
        source = source_of(
            text, parameters=parameters, attention=attention, trust_remote_code=trust_remote_code
        )
        if frozen:
            freeze(source.module)
        message = lambda line, of=precision: progress(f"{of}: {line}")  # noqa: E731
        plan = NO_PLAN if tp_plan is None else Plan(styles=ends_of(tp_plan or source.tp_plan))
        source.external = kernels == "library"
        traces.append(_traced(source, seq_len, autocast=precision == "autocast", progress=message, plan=plan))
    assert source is not None
    return _model(traces, source)


def trace_config(
    config: Mapping[str, Any],
    *,
    name: str,
    seq_len: int | None = None,
    precision: str = "bf16",
    attention: str | None = None,
    frozen: bool = False,
) -> Model:
    """Return the model that the content of a config.json describes, traced at one sequence length in one precision.

    Without `seq_len`, it is traced at 4,096 tokens, or half as many as it has positions. If `frozen`, no parameter is
    trained.
    """
    source = source_of_config(config, parameters=PARAMETERS[precision], attention=attention)
    if frozen:
        freeze(source.module)
    source.name, source.thresholds = name, None
    seq_len = seq_len or min(USUAL_LENGTH, source.positions // 2 or USUAL_LENGTH)
    report = partial(_report, str(config["model_type"]))
    trace = _traced(source, seq_len, autocast=precision == "autocast", progress=report, plan=NO_PLAN)
    report("")
    return replace(_model([trace], source), config=json.dumps(dict(config)))


def freeze(module: nn.Module) -> None:
    """Train no parameter of a module; its layers have gradients of their inputs, as above the adapters of others."""
    module.requires_grad_(requires_grad=False)
    for child in module.modules():
        if isinstance(child, nn.Embedding):
            child.register_forward_hook(lambda _module, _inputs, result: result.requires_grad_())


def _report(name: str, text: str) -> None:
    """Show the progress of a trace where a person sees it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{f'tracing {name}: {text}' if text else ''}")
        sys.stderr.flush()


def _traced(source: Source, seq_len: int, *, autocast: bool, progress: Progress, plan: Plan) -> Trace:
    libraries = libraries_of(source.module)
    traced = partial(
        trace_module,
        source.module,
        seq_len=seq_len,
        autocast=TYPES["bf16"] if autocast else None,
        loss=source.loss,
        progress=progress,
        thresholds=source.thresholds,
        plan=plan,
        external=source.external,
        kernels=libraries if source.external else libraries and "torch",
        attention=source.attention,
        experts=source.experts,
        transformers=_transformers_version() if source.origin.startswith("transformers") else "",
    )
    try:
        return traced(inputs=source.inputs)
    except ForescaleError:
        for inputs in source.further:
            with contextlib.suppress(ForescaleError):
                return traced(inputs=inputs)
        raise


def _model(traces: Sequence[Trace], source: Source) -> Model:
    width = source.hidden_size or _width(traces[0])
    return traced_model(
        traces, name=source.name, hidden_size=width, vocab_size=source.vocab_size, source=source.origin
    )


def _width(trace: Trace) -> int:
    """Return the width of the stream between blocks, from the bytes of one token; 1 if it has none."""
    size = 2.0 if trace.parameters in ("bf16", "fp16") else 4.0
    widths = [float(block.output_bytes.at(1.0, 1.0)) / size for block in trace.blocks.values()]
    return max(1, *(int(width) for width in widths))


def _transformers_version() -> str:
    import transformers

    return str(transformers.__version__)
