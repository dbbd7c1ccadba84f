"""Read a Hugging Face `config.json` as a model."""

from forescale.frameworks.huggingface.reader import (
    ReadModel,
    load_huggingface,
    read_huggingface,
    supported_model_types,
)

__all__ = ["ReadModel", "load_huggingface", "read_huggingface", "supported_model_types"]
