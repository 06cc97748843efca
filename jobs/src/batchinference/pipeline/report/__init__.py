"""The report of a job: progress, error limits, notes of tasks, and merged reports."""
