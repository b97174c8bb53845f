"""The programs that `make bench` runs: each prints one JSON object per round of measurements."""
