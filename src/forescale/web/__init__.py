"""The page: one form, and at once what a run needs, how fast it goes and how best to lay it out.

`app` serves and remembers; `workers` are the processes that answer, each question in a time limit. They run `pages`,
which write what is shown: `asked` turns an address into a question and back, `upload` a framework's file, `charts`
draws curves. Only this package imports FastAPI and its company.
"""

LEVEL = 5
"""Compression level of answers, of 9."""
