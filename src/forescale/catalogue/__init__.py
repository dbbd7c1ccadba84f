"""Models, devices and clusters by name: data files with provenance, and what reads them."""
