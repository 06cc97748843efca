"""Language models that Ray Data runs by a processor of its own, several operators of it."""
