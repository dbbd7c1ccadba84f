"""Read Megatron-LM's configuration: command lines, launch scripts, tables of flags."""

from forescale.frameworks.megatron.reader import MegatronReader, read_arguments, read_settings

__all__ = ["MegatronReader", "read_arguments", "read_settings"]
