"""Similarity search: finds the rows of a finished output with embeddings nearest to a query."""
