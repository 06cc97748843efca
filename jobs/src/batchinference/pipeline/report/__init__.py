"""The job's report: notes of tasks, and the reports of several runs in one."""
