"""Megatron-Bridge: recipes in Python that set fields of a ConfigContainer."""
