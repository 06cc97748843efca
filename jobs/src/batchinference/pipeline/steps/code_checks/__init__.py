"""Checks the source of the user's code before the job starts, without running it."""
