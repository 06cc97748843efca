"""Column names that are reserved for BatchInference."""

OWN_PREFIX = "_bi_"
"""Prefix of the reserved columns."""
