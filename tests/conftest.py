"""What all suites share."""

pytest_plugins = [
    "plugins.tiers",
    "plugins.xdist_groups",
    "plugins.skips",
    "plugins.outcomes",
    "plugins.interrupts",
    "plugins.timing",
]
