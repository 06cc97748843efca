"""Each input row is written exactly once or is a failed row, regardless of the injected faults.

`make chaos` runs this. With --write, the printed table is written to docs/contributing/chaos.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from chaos.faults import Site
from chaos.jobs import jobs
from chaos.plans import plans
from chaos.runner import Runner
from chaos.table import Options, page
from support.cluster.deployment import ROOT
from support.cluster.statuses import watched

PAGE = ROOT / "docs" / "contributing" / "chaos.md"


@pytest.fixture
def say(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Return a function that prints a line without delay, with the seconds since the start."""
    began = time.monotonic()
    reporter = pytestconfig.pluginmanager.getplugin("terminalreporter")

    def line(text: str) -> None:
        reporter.write_line(f"{time.monotonic() - began:4.0f} s  {text}")

    return line


def test_each_row_is_written_once_under_every_fault(
    site: Site, seed: int, say: Callable[[str], None], pytestconfig: pytest.Config
) -> None:
    count: int = pytestconfig.getoption("--jobs")
    faults: int = pytestconfig.getoption("--faults")
    at_once: int = pytestconfig.getoption("--at-once")
    say(f"seed {seed}, {count} jobs, {faults} faults for each")
    planned = plans(count, faults, seed)
    with watched(site.jobs) as history, ThreadPoolExecutor(at_once) as pool:
        runner = Runner(site, history, say)
        results = list(pool.map(runner.run, jobs(count, seed), planned))
        list(pool.map(runner.check, results))
    result = page(results, site.store.injected_faults(), Options(seed, faults, at_once))
    print(result)
    if pytestconfig.getoption("--write"):
        PAGE.write_text(result)
    assert [problem for result in results for problem in result.problems] == []
    wanted = {injection.fault.name for plan in planned for injection in plan}
    assert {one.fault for one in runner.injected} == wanted, "a fault was never injected"
