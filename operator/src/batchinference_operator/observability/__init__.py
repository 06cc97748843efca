"""Metrics, Events, logs and HTTP endpoints."""
