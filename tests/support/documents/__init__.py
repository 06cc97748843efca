"""Jobs, models and documentation pages as plain data."""
