"""Pure functions that compute the actions for a job from its observed state."""
