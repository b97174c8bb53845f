"""A plain transformer that gives the expected values: NumPy float64, written to be read.

Nothing here comes from the package under test, and nothing is clever. It imports `model` only.
Masks are bool, True = may attend.

Letters in shapes: B batch, T target length, S source length, H heads, G key/value heads,
D d_model, K head width, F d_ff, V vocabulary.
"""
