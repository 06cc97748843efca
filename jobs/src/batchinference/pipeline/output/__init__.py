"""Writes rows to files and tables."""
