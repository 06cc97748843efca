"""The Python API: jobs as objects, and their runs."""
