"""Speed and memory against their targets: `python -m grader.bench`, or `make bench`."""
