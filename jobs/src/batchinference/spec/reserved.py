"""Names that are reserved for BatchInference."""

OWN_PREFIX = "_bi_"
"""Prefix of reserved column names."""
PREPARED_PREFIX = OWN_PREFIX + "prepared_"
"""Prefix of the columns in which tasks put tokens for the pool of a model."""
RESERVED_STEPS = ("read", "write")
"""Names that no step can have. In reports and error records, they mean reading and writing."""
NODE_VARIABLE = "BATCHINFERENCE_NODE"
"""Environment variable of worker pods with the name of their Kubernetes node."""
END_VARIABLE = "BATCHINFERENCE_END_FILE"
"""Environment variable of worker pods with the path of a file that exists once the pod ends."""
