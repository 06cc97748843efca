"""The operator and the systems that it uses, in memory or as processes."""
