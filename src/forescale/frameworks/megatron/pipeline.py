"""How Megatron splits layers over pipeline stages: evenly, first and last apart, or by a layout string."""

from __future__ import annotations

import re

from msgspec.structs import replace

from forescale import wording
from forescale.errors import shown
from forescale.frameworks.megatron.model import hybrid_segments
from forescale.frameworks.megatron.run import GROUP
from forescale.frameworks.settings import Settings
from forescale.limits import whole_of
from forescale.struct import Struct
from forescale.units import counted

LONGEST = 50_000
"""Letters of a layout."""
_REPEATED_GROUP = re.compile(r"\(([^()]*)\)\*(\d+)")
_REPEATED_LETTER = re.compile(r"([EtmL|])\*(\d+)")
_VIRTUAL = (
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "pipeline_model_parallel_layout",
)


class Split(Struct, frozen=True, kw_only=True):
    """Chunks per rank, and decoder layers of each rank or of each chunk where they differ."""

    vpp: int = 1
    stage_layers: tuple[int, ...] | None = None
    """One count per rank, or per virtual stage in the order of the model."""
    group: int | None = None
    """Micro-batches that a chunk takes in a row, where that is not pp."""


def read_split(settings: Settings, *, num_layers: int, pp: int) -> Split:
    """Return how `num_layers` decoder layers lie on `pp` ranks; refuses what Megatron refuses."""
    keys = [key for key in _VIRTUAL if key in settings]
    if len(keys) > 1:
        names = " and ".join(settings.spell(key) for key in keys)
        settings.refuse(wording.conflicts(names, reason="both set the virtual stages"))
    stated = settings.count("virtual_pipeline_model_parallel_size")
    split = _split(settings, num_layers, pp)
    if stated and stated != split.vpp:
        key = settings.spell("virtual_pipeline_model_parallel_size")
        other = "the number of virtual stages from the rest of the file"
        settings.refuse(wording.differs(key, stated, other, split.vpp))
    group = settings.count(GROUP)
    return replace(split, group=None if split.vpp == 1 or group == pp else group)


def _split(settings: Settings, num_layers: int, pp: int) -> Split:
    segments = hybrid_segments(settings)
    if len(segments) > 1:
        return _segmented(settings, segments, pp)
    if "pipeline_model_parallel_layout" in settings:
        return _layout(settings, num_layers, pp)
    listed = settings.words("decoder_pipeline_manual_split_list")
    layers = _manual(settings, listed, num_layers, pp) if listed else _stages(settings, num_layers, pp)
    vpp = _virtual(settings, num_layers, pp)
    if vpp > 1 and pp == 1:
        other = f"{vpp} virtual stages"
        settings.refuse(wording.required_with("a pipeline of 2 ranks or more, got 1", other))
    short = next((count for count in layers if count < vpp), None) if len(layers) == pp else None
    if short is not None and not _accounted(settings):
        settings.refuse(f"a rank of {counted(short, 'layer')} cannot have {counted(vpp, 'virtual stage')}")
    return Split(vpp=vpp, stage_layers=layers if len(set(layers)) > 1 else None)


def _segmented(settings: Settings, segments: tuple[str, ...], pp: int) -> Split:
    """Return the split that the bars of a hybrid pattern make: segments go round the ranks."""
    if len(segments) % pp:
        settings.refuse(
            wording.not_divisible("the number of stages of the layer pattern", len(segments), pp, "pp")
        )
    layers = tuple(map(len, segments))
    return Split(vpp=len(segments) // pp, stage_layers=layers if len(set(layers)) > 1 else None)


def _virtual(settings: Settings, num_layers: int, pp: int) -> int:
    """Return the chunks per rank, of whichever key says them."""
    per_chunk = settings.count("num_layers_per_virtual_pipeline_stage")
    if per_chunk is None:
        return settings.count("num_virtual_stages_per_pipeline_rank") or settings.degree(
            "virtual_pipeline_model_parallel_size"
        )
    if pp == 1:
        settings.note(
            f"{settings.spell('num_layers_per_virtual_pipeline_stage')} has no effect on a pipeline of 1"
        )
        return 1
    per_rank = -(-(num_layers + _accounted(settings)) // pp)
    if per_chunk < 1 or per_rank % per_chunk:
        terms = settings.spell("num_layers_per_virtual_pipeline_stage")
        settings.refuse(wording.not_divisible("the layers of a rank,", per_rank, per_chunk, terms))
    return per_rank // per_chunk


def _accounted(settings: Settings) -> int:
    embedding = settings.flag("account_for_embedding_in_pipeline_split")
    return int(embedding) + int(settings.flag("account_for_loss_in_pipeline_split"))


def _stages(settings: Settings, num_layers: int, pp: int) -> tuple[int, ...]:
    """Return the layers of each rank."""
    first = settings.count("decoder_first_pipeline_num_layers")
    last = settings.count("decoder_last_pipeline_num_layers")
    apart = _accounted(settings)
    if first is None and last is None:
        if (num_layers + apart) % pp:
            if settings.flag("allow_padding_num_layers"):
                settings.note(
                    f"{num_layers} layers are not a multiple of pp {pp}; the first ranks get one more"
                )
                base, more = divmod(num_layers, pp)
                return tuple(base + (rank < more) for rank in range(pp))
            counted = f" ({num_layers + apart} with embedding and loss counted)" if apart else ""
            fits = [count for count in range(1, num_layers + apart + 1) if (num_layers + apart) % count == 0]
            near = sorted(fits, key=lambda count: abs(count - pp))[:2]
            fix = f"give --pp {' or '.join(map(str, sorted(near)))}{counted}"
            settings.refuse(wording.not_divisible("num_layers", num_layers + apart, pp, "pp", fix))
        item = (num_layers + apart) // pp
        stages = [item] * pp
        stages[0] -= settings.flag("account_for_embedding_in_pipeline_split")
        stages[-1] -= settings.flag("account_for_loss_in_pipeline_split")
        return tuple(stages)
    fixed = [count for count in (first, last) if count is not None]
    rest, between = num_layers - sum(fixed), pp - len(fixed)
    if between < 0 or rest < 0 or (rest % between if between else rest):
        settings.refuse(
            f"{rest} layers besides the {' and '.join(map(str, fixed))} of the first or last rank do not lie "
            f"evenly on {max(between, 0)} ranks"
        )
    middle = (rest // between,) * between if between else ()
    return (*([first] if first is not None else []), *middle, *([last] if last is not None else []))


def _manual(settings: Settings, listed: tuple[str, ...], num_layers: int, pp: int) -> tuple[int, ...]:
    key = settings.spell("decoder_pipeline_manual_split_list")
    counts = [whole_of(word) for word in listed]
    layers = tuple(count for count in counts if count is not None)
    if len(layers) < len(counts):
        settings.refuse(wording.wrong_type(key, " ".join(listed), "a list of whole numbers"))
    if sum(layers) != num_layers or len(layers) % pp:
        value = f"{counted(len(layers), 'stage')} of {counted(sum(layers), 'layer')}"
        allowed = f"{counted(num_layers, 'layer')} on {counted(pp, 'rank')}"
        settings.refuse(wording.wrong_count(key, value, "the model", allowed))
    return layers


def layout_text(sizes: tuple[int, ...], num_mtp_layers: int) -> str:
    """Return stages as Megatron's layout has them: Et*3|t*4|t*3mL."""
    stages = [f"t*{size}" if size > 1 else "t" * size for size in sizes]
    stages[0] = f"E{stages[0]}"
    stages[-1] = f"{stages[-1]}{'m' * num_mtp_layers}L"
    return "|".join(stages)


def _layout(settings: Settings, num_layers: int, pp: int) -> Split:
    """Read a string such as "Et|(tt|)*6mL".

    E is the embedding, t a decoder layer, m a layer of multi-token prediction, L the loss, | ends a stage.
    """
    text = str(settings.get("pipeline_model_parallel_layout"))
    key = settings.spell("pipeline_model_parallel_layout")
    plain = re.sub(r"[,\\]", "", text).strip("'\" ")

    def repeated(match: re.Match[str]) -> str:
        times = whole_of(match[2])
        if times is None or times * len(match[1]) + len(plain) > LONGEST:
            settings.refuse(wording.too_large(f"{key} {shown(text)}", "", f"{LONGEST:,} letters"))
        return match[1] * times

    while plain != (plain := _REPEATED_GROUP.sub(repeated, plain, count=1)):
        pass
    plain = _REPEATED_LETTER.sub(repeated, plain)
    if set(plain) - set("EtmL|"):
        settings.refuse(wording.wrong_type(key, text, "made of E, t, m, L, | and (...)*n"))
    chunks = [chunk.count("t") for chunk in plain.split("|")]
    if sum(chunks) != num_layers or len(chunks) % pp:
        value = f"{counted(len(chunks), 'stage')} of {counted(sum(chunks), 'layer')}"
        allowed = f"{counted(num_layers, 'layer')} on {counted(pp, 'rank')}"
        settings.refuse(wording.wrong_count(f"{key} {shown(text)}", value, "the model", allowed))
    return Split(vpp=len(chunks) // pp, stage_layers=tuple(chunks) if len(set(chunks)) > 1 else None)
