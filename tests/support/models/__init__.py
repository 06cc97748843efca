"""Small models with seeded random weights."""
