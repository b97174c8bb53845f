"""Grading a class: `python -m grader batch SOURCE --out DIR`.

`loop` takes every submission once: from the store, or graded, or with a reason why not. A
`run.pool` grades, or `cluster`, the same on Dask; `messages` is what they are asked. `keys` tells
what a result depends on, `store` is the output folder; `rows` and `page` are what a person reads.
"""
