"""Plugins of pytest that all suites share."""
