"""Names that are reserved for BatchInference."""

OWN_PREFIX = "_bi_"
"""Prefix of the reserved columns."""
RESERVED_STEPS = ("read", "write")
"""Names of reading and writing in reports and error records."""
