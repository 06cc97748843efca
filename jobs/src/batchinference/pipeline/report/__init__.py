"""The report and the history of a job: built while it runs, stored, and read again."""
