"""Judges behaviour: a referee asks, a confined worker answers, only the referee decides."""
