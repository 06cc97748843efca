"""How a job runs on Ray: read tasks, steps and commits."""
