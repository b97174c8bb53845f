"""The questions that a worker can answer about the mounted tree, one function each."""
