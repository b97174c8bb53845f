"""The referee's end of a worker: start it, ask it, watch it, end it; imports `sandbox`, `base`."""
