"""A batch service for tests, and the cluster that it talks to."""
