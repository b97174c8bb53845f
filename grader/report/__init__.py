"""What a person or a platform reads of a `results.json`; nothing here asks a submission."""
