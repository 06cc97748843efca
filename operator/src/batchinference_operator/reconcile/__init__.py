"""What is to be done about a job. Pure: what was observed in, actions out."""
