"""Pure functions that compute the status of a BatchInference from observations."""
