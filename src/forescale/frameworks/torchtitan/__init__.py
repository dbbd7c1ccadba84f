"""torchtitan: Python job configurations of 0.3 and later; sections of 0.2 inside Primus experiments."""
