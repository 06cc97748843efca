"""Pytest plugins that all suites share."""
