"""The processes that run a student's code: the zygote and the worker, both without secrets."""
