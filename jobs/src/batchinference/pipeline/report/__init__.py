"""The report of a job: notes of tasks, and the merged reports of several outputs."""
