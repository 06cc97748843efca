"""Plugins that all suites share."""

from __future__ import annotations

pytest_plugins = [
    "plugins.tiers",
    "plugins.xdist_groups",
    "plugins.fsync",
    "plugins.skips",
    "plugins.outcomes",
    "plugins.interrupts",
    "plugins.messages",
    "plugins.postgres",
    "plugins.s3",
]
