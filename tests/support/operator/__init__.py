"""The operator and the systems that it talks to, in memory or as processes."""
