"""The checks: each a plain pytest function whose docstring is the sentence a student reads."""
