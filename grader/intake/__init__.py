"""From whatever was handed in to a clean tree, and what its source may not use."""
