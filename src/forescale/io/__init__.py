"""Readers and writers of our own files: plans, clusters, spaces, measurements; validation at the edge."""
