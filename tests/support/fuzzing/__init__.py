"""Damaged files for readers, and a process that reads them within limits."""
