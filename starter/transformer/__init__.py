"""A complete transformer built from its parts: encoder-decoder and decoder-only."""
