"""Requests to the Kubernetes API server."""
