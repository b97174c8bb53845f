"""Settings, results, files and text: every room may import this one, and it imports none."""
