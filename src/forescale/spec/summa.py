"""What SUMMA cannot lay out."""

from __future__ import annotations

from forescale.spec.model import FullAttention, Model

SUMMA_NEIGHBOURS = (
    "tp_kind summa shares weights among all ranks or none after forward: reshard is always or never"
)


def summa_refusal(model: Model) -> str | None:
    """Return why a model has no layout by SUMMA, if it has none."""
    kinds = model.layer_kinds
    others = any(kind.attention and not isinstance(kind.attention, FullAttention) for kind in kinds)
    reasons = {
        "experts": model.is_moe,
        "latent or linear attention": others,
        "multi-token prediction": model.num_mtp_layers > 0,
        "a vision tower": model.vision is not None,
        "embeddings narrower than the hidden size": bool(
            model.embedding_size and model.embedding_size != model.hidden_size
        ),
    }
    found = [reason for reason, applies in reasons.items() if applies]
    if not found:
        return None
    return f"tp_kind summa lays out dense models with full attention; {model.name} has {' and '.join(found)}"
