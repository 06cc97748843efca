"""Similarity search: the rows of a finished output whose embeddings are nearest to a query."""
