"""Ways to run a job: on Ray, without Ray, as a command, killed at a chosen step."""
