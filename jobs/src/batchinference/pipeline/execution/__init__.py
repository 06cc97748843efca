"""Runs a job on Ray: reads, steps and commits."""
