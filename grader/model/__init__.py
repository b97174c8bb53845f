"""The model under test as the referee knows it: names, shapes, and draws; no torch."""
