"""What the referee knows of the model under test: names, shapes and random draws; no torch."""
