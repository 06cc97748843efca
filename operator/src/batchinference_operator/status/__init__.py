"""Computes the status of a BatchInference from observations. Pure functions."""
