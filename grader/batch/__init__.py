"""Grading a class: `python -m grader batch SOURCE --out DIR`.

`reader` makes of what came what is graded of it, `keys` its key. `loop` takes every submission
once: from the store, or graded, or with a reason why not. `fleet` holds the processes that grade,
`cluster` the same on Dask. `store` is the output folder; `rows`, `book` and `page` are what a
person reads.
"""
