"""Outputs: written by tests, read back, checked."""
