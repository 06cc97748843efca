"""From observations to the status of a BatchInference. Pure."""
