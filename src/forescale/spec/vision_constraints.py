"""What makes a layout of a model with images legal: sizes and tokens of images, and the tower that tp cuts."""

from __future__ import annotations

from math import gcd

from forescale.errors import SpecError, missing, not_divisible
from forescale.spec.model import Model
from forescale.spec.proposal import Constraint, Proposal
from forescale.spec.summa import ffn_widths
from forescale.units import counted


def _images(q: Proposal) -> str | SpecError:
    """Return what is wrong with the images of a sequence; nothing if all is well."""
    vision, images = q.model.vision, q.workload.images
    assert vision is not None
    size, side = images.size or vision.image_size, vision.patch_size * vision.merge
    if not size:
        usual = 16 * side
        fix = f"{q.model.name} takes images of any size; give --image-size, such as {usual}"
        return SpecError(missing("images.size", fix), nearest=(usual,))
    if vision.tiles is None and size % side:
        return not_divisible("images.size", size, side, f"the pixels of a token of {q.model.name}")
    tokens, room = vision.tokens(images), q.workload.seq_len
    if images.count * tokens > room:
        text = f"{counted(images.count, 'image')} of {counted(tokens, 'token')}"
        return f"{text} are more than the {room} of a sequence; give fewer, or a longer sequence"
    return ""


def _tower_widths(model: Model) -> tuple[int, ...]:
    """Return what tp must divide of a vision tower that it cuts."""
    if model.vision is None:
        return ()
    inner = (model.vision.projector_ffn,) if model.vision.projector_ffn else ()
    split = (*model.vision.projector[:-1][::2], *inner)
    heads = (heads for attention in model.vision.encoder.attentions for heads in attention.heads)
    return tuple(dict.fromkeys((*heads, *ffn_widths(model.vision.encoder), *split)))


VISION_CONSTRAINTS: tuple[Constraint, ...] = (
    Constraint(
        name="images",
        holds=lambda q: not _images(q),
        message=_images,
        applies=lambda q: q.model.vision is not None,
    ),
    Constraint(
        name="images of a text model",
        holds=lambda q: q.workload.images.count <= 1 and q.workload.images.size is None,
        message=lambda q: (
            f"{q.model.name} has no vision tower to see images; leave images out (--images)"
            if q.workload.images.count
            else "images 0 are of no size; leave images.size out (--image-size)"
        ),
        applies=lambda q: q.model.vision is None,
    ),
    Constraint(
        name="vision tower over tp",
        key="tp",
        holds=lambda q: gcd(*_tower_widths(q.model)) % q.degrees.tp == 0,
        message=lambda q: (
            f"tp {q.degrees.tp} does not divide the heads and feed-forward sizes {_tower_widths(q.model)} of the "
            f"vision tower of {q.model.name}, which tp cuts (kernels.cuts_vision)"
        ),
        applies=lambda q: q.model.vision is not None and q.degrees.kernels.cuts_vision,
    ),
)
"""Conditions on images and on the tower that reads them."""
