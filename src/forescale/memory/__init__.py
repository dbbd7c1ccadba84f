"""Bytes per device: states, activations in flight, buffers, overhead; per pipeline stage."""
