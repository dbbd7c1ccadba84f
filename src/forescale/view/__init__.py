"""What people look at: charts as Vega-Lite specifications, and one page of components with one style.

A page draws its charts in the browser, with the library inside itself; a chart alone is written by `files`.
"""
