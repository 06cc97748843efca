"""The report of a job: built while it runs, merged, stored and read again."""
