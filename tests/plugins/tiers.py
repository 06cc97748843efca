"""Selects the tests of a tier.

A test marked `long("GROUP")` runs only in that group of the long tier. A test marked
`scaled("GROUP")` runs at each landing with few examples, and in the group with all examples (see
support/tiers.py). Unmarked Hypothesis tests belong to the group `properties`. If they do not set
their number of examples, they use DEFAULT_EXAMPLES, and a quarter of them at each landing. At a
landing, each run uses the same examples; the long tier uses random ones.
"""

from __future__ import annotations

import os

import hypothesis
import pytest

from support.tiers import TIER, examples, in_long_tier

PROPERTIES = "properties"
DEFAULT_EXAMPLES = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", metavar="GROUP", help="Run one group of the long tier.")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long(group): runs in this group of the long tier only")
    config.addinivalue_line("markers", "scaled(group): uses more examples in this group")
    if config.getoption("--long"):
        os.environ[TIER] = "long"
    # no deadline: other processes may use the same cores
    hypothesis.settings.register_profile(
        "tier",
        max_examples=examples(DEFAULT_EXAMPLES),
        derandomize=not in_long_tier(),
        deadline=None,
    )
    hypothesis.settings.load_profile("tier")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--long")
    selected: list[pytest.Item] = []
    deselected: list[pytest.Item] = []
    for item in items:
        (selected if _is_selected(item, wanted) else deselected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


def _is_selected(item: pytest.Item, wanted: str | None) -> bool:
    long = _groups(item, "long")
    if wanted is None:
        return not long
    return wanted in (long or _groups(item, "scaled") or _implicit_groups(item))


def _groups(item: pytest.Item, marker: str) -> set[str]:
    return {mark.args[0] for mark in item.iter_markers(marker)}


def _implicit_groups(item: pytest.Item) -> set[str]:
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return {PROPERTIES} if is_property else set()
