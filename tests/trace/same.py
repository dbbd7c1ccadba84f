"""Compare packaged recordings with what recording a configuration's own code gives."""

from __future__ import annotations

from collections import Counter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from forescale.graph.recorded import recorded_traces
from forescale.spec.trace import COLLECTIVES, Formula
from forescale.trace.session import fake, record
from forescale.trace.sources import EXPERTS, default_type, token_inputs
from forescale.trace.tracing import Assembly


class OneSize(Assembly):
    """A trace of one recording, whose formulas are numbers."""

    def _formula(self, values):
        return Formula(coefficients=(int(values[0]), 0, 0, 0, 0, 0))


def traced(config, precision, attention, batch, length):
    """Return the trace of a configuration at one size, recorded from its own code."""
    import transformers

    made = transformers.AutoConfig.for_model(**config)
    made.use_cache = False
    with default_type("bf16" if precision == "bf16" else "fp32"), torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(made, attn_implementation=attention)
    module.train()
    if hasattr(made, "_experts_implementation") and made._experts_implementation is None:
        made._experts_implementation = EXPERTS
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    fake(module, mode)
    kind = torch.bfloat16 if precision == "autocast" else None
    one = record(module, lambda: token_inputs(batch, length), mode=mode, size=(batch, length), autocast=kind)
    return OneSize(module, [one]).trace(kind)


def packaged(config, precision, attention, length):
    """Return the packaged trace of a configuration."""
    wanted = "bf16" if precision == "bf16" else "fp32"
    traces = recorded_traces(config, seq_len=length, attention=attention)
    return next(trace for trace in traces if trace.parameters == wanted)


def kernels(block, size=(1, 1)):
    """Return how often each kernel of a block runs; messages of split blocks are none on one rank."""
    counts = Counter()
    for operator in block.operators:
        for part in ("forward", "backward", "weight"):
            for kernel in getattr(operator, part):
                if kernel.kind in COLLECTIVES:
                    continue
                extents = tuple(round(float(extent.at(*map(float, size)))) for extent in kernel.extents)
                key = (
                    part,
                    operator.module,
                    kernel.operator,
                    kernel.kind,
                    kernel.dtype,
                    extents,
                    kernel.replayed,
                )
                counts[key] += kernel.count
    return counts


def peaks(block, size=(1, 1)):
    """Return the bytes that a block keeps and needs at most."""
    at = [float(x) for x in size]
    most = [
        max((f.at(*at) for f in getattr(block, name)), default=0.0)
        for name in ("forward_bytes", "backward_bytes")
    ]
    return [
        float(getattr(block, name).at(*at)) for name in ("input_bytes", "output_bytes", "saved_bytes")
    ] + most


def differences(config, precision, attention, size):
    """Return what differs between both traces, block by block."""
    length = size[1]
    ours, theirs = packaged(config, precision, attention, length), traced(config, precision, attention, *size)
    pairs = [(name, getattr(ours, name), getattr(theirs, name)) for name in ("embedding", "head")]
    seen = set[tuple[str, str]]()
    for mine, its in zip(ours.layers, theirs.layers, strict=True):
        if (mine, its) not in seen:
            seen.add((mine, its))
            pairs.append((mine, ours.blocks[mine], theirs.blocks[its]))
    result = []
    for name, mine, its in pairs:
        one, other = kernels(mine, size), kernels(its)
        if one != other:
            result.append((name, "kernels", dict(one - other), dict(other - one)))
        if [(p.name, p.shape) for p in mine.parameters] != [(p.name, p.shape) for p in its.parameters]:
            result.append((name, "parameters", mine.parameters, its.parameters))
        tolerance = 0.25 if name == "embedding" else 0.05
        pairs_of = zip(peaks(mine, size), peaks(its), (1e-9, 1e-9, 1e-9, tolerance, tolerance), strict=True)
        if any(abs(a - b) > most * max(a, b) for a, b, most in pairs_of):
            result.append((name, "bytes", peaks(mine, size), peaks(its)))
    return result
