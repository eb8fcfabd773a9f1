"""What is shown of a run."""
