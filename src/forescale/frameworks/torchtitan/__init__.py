"""torchtitan: its TOML files up to 0.2 and its Python job configurations since 0.3."""
