"""What a check may say: a question to the submission, what is expected, how to compare."""
