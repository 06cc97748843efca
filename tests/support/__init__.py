"""Helpers that more than one suite uses."""
