"""Metrics, Events, logs and the HTTP endpoints."""
