"""The input of a job: files and tables, split into read tasks."""
