"""Charts and pages of results: Vega-Lite specifications, and SVG and HTML that need nothing else."""
