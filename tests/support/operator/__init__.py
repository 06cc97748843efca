"""The operator and what it talks to, in memory or as a process."""
