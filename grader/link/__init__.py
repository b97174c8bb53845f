"""The referee's end of a worker: starting it, asking it, watching it, ending it."""
