"""Primus: experiments and model presets for its Megatron backend, and its files of hardware."""
