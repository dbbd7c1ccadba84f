"""MaxText: its YAML configurations with overrides, and command lines that start it."""
