"""Tests what a submission does: a referee asks, a confined worker answers, the referee decides.

The packages in it are called rooms; each imports only rooms below it (docs/architecture.md).
"""
