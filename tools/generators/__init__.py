"""Generate the definitions and the pages of the documentation from the models."""
