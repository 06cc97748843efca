"""Servers on the loopback: Kubernetes API, object stores, HTTP, proxies with faults."""
