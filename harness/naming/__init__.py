"""What a job and a row are called, and which rows are repeats of one measurement."""
