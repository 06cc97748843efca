"""Runs the steps of a landing: `python -m landing`. Needs only Python's standard library."""
