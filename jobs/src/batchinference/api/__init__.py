"""The Python API, which the command line also uses: jobs, their runs, outputs and clusters."""
