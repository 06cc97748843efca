"""Whatever dies, each row of the input ends up once in the output or among the errors.

`make chaos` runs it. The table that it prints is docs/chaos.md with --write.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.battle import Battle
from chaos.faults import Site
from chaos.jobs import jobs
from chaos.plans import plans
from chaos.table import page
from support.deployment import ROOT
from support.patience import watched

ENOUGH = 2 / 3
"""Of the faults that were planned. A job may end before its last one."""
PAGE = ROOT / "docs" / "chaos.md"


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Prints a line at once, with the seconds since the beginning."""
    began = time.monotonic()
    reporter = pytestconfig.pluginmanager.getplugin("terminalreporter")

    def line(text: str) -> None:
        reporter.write_line(f"{time.monotonic() - began:4.0f} s  {text}")

    return line


@pytest.mark.timeout(0)  # each job has its time
def test_whatever_dies_each_row_is_there_once(
    site: Site, seed: int, say: Callable[[str], None], pytestconfig: pytest.Config
) -> None:
    count: int = pytestconfig.getoption("--jobs")
    at_once: int = pytestconfig.getoption("--at-once")
    say(f"seed {seed}, {count} jobs")
    with (
        watched(site.jobs) as lives,
        ThreadPoolExecutor(at_once) as pool,
    ):
        battle, planned = Battle(site, lives, say), plans(count, seed)
        stories = list(pool.map(battle.fight, jobs(count), planned))
    found = page(stories, site.store.spoilt(), seed, at_once)
    print(found)
    if pytestconfig.getoption("--write"):
        PAGE.write_text(found)
    assert [problem for story in stories for problem in story.problems] == []
    struck = {blow for story in stories for blow in story.blows}
    assert len(struck) >= ENOUGH * sum(map(len, planned)), "too few have struck"
