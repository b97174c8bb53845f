"""What keeps the lab right: starter and handout made of the solution, the grader graded."""
