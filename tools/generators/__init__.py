"""Generators of the CRDs, the admission rules and tables of the documentation, from the models."""
