"""Names that are reserved for BatchInference."""

OWN_PREFIX = "_bi_"
"""Prefix of reserved column names."""
RESERVED_STEPS = ("read", "write")
"""Reserved step names: reading and writing in reports and error records."""
