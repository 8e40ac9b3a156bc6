"""What a job, a row, a model and a mistyped name are called."""
