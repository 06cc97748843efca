"""What each landing runs: `python -m landing`. Needs nothing but Python's standard library."""
