"""The pipeline: what a plan becomes on Ray Data."""
