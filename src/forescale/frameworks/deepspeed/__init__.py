"""DeepSpeed: its JSON configuration."""
