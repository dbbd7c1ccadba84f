"""Training frameworks, one folder each: what of their configurations is read and written."""
