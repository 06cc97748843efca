"""Tests that share one operator, which watches all namespaces. Each test has its own namespace."""
