"""The page: one form, and at once what a run needs, how fast it goes and how best to lay it out.

`asked` turns an address into a question and back, `answers` answers and remembers, `jobs` runs searches in processes
of their own that can be cancelled, `charts` draws, `app` serves. Only this package imports FastAPI and its company.
"""
