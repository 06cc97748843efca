"""What a job reads: files and tables, split into tasks."""
