"""Execution of a job on Ray: read tasks, steps and commits."""
