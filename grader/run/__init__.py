"""One submission, end to end: staged, asked by every check, scored, written."""
