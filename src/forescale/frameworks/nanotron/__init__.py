"""nanotron: its YAML configuration."""
