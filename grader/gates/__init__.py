"""What the gates share: models to ask, the training, from a leak or a silence to its cause."""
