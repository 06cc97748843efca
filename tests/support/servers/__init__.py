"""Servers on loopback: Kubernetes API, object stores, HTTP, proxies with faults."""
