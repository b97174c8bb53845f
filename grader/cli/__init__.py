"""The commands that a student or an instructor gives for one tree, and their arguments."""
