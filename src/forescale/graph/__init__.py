"""The training step as operator lists: what is computed, sent and kept, for one layout or many."""
