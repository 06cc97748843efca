"""Decides what to do about a job. Pure functions: observations in, actions out."""
