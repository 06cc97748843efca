"""The names that benchmarks use exist. No test runs a benchmark."""

from __future__ import annotations

import importlib
import importlib.util
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.xdist_group("models")  # its worker has imported most libraries
ROOT = Path(__file__).parents[3]
BENCH = ROOT / "tests" / "bench"
MODULES = sorted(file.stem for file in BENCH.glob("*.py"))
STOPPED = """
import signal, stop_signals
from contextlib import contextmanager
@contextmanager
def server():
    try:
        yield
    finally:
        print("stopped", flush=True)
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a background process of a shell
stop_signals.exit_on_signals()
with server():
    print("started", flush=True)
    signal.pause()
"""


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    """Import all modules of the benchmarks, as scripts do, and forget them after the test."""
    monkeypatch.syspath_prepend(str(BENCH))
    with_daft = {name for name in MODULES if name.endswith("_daft")}
    wanted = set(MODULES) - (set() if importlib.util.find_spec("daft") else with_daft)
    assert not wanted & sys.modules.keys()
    try:
        yield {name: importlib.import_module(name) for name in wanted}
    finally:
        for name in wanted:
            sys.modules.pop(name, None)


def test_all_benchmarks_can_be_imported(modules: dict[str, ModuleType]) -> None:
    assert len(modules) > 30


def test_cases_of_a_benchmark_have_all_that_they_name(modules: dict[str, ModuleType]) -> None:
    throughput = modules["throughput"]
    assert throughput.LIMITS.keys() == throughput.CASES.keys()
    peers = {peer for limits in throughput.LIMITS.values() for peer in limits}
    assert peers - {"images_daft"} == modules["peer_throughput"].PEERS.keys() - {"nothing"}
    feed = modules["feed"]
    peers = {name: case.goals.keys() for name, case in feed.CASES.items()}
    assert peers == {name: ways.keys() for name, ways in modules["peer_feed"].PEERS.items()}
    assert modules["resume"].CASES


def test_rate_of_a_feed_is_that_of_the_rows_after_the_start(modules: dict[str, ModuleType]) -> None:
    feed = modules["feed"]
    times = {
        "ours": feed.Times(1000, 100, [30.0, 20.0, 19.0], [10.0, 11.0, 9.0]),
        "ray": feed.Times(1000, 100, [15.0], [5.0]),
        "loop": feed.Times(1000, 100, [2.0], [1.0]),
    }
    assert [one.rate for one in times.values()] == [90.0, 90.0, 900.0]
    assert feed.missed("texts", times, {"ray": 1.05, "loop": None}) == []
    assert feed.missed("texts", times, {"ray": 1.06, "loop": 0.2}) == ["texts ray", "texts loop"]
    assert ["ratio 1.00" in line for line in feed.table_of("texts", times, {"ray": 1.0})] == [True]
    with pytest.raises(SystemExit):
        _ = feed.Times(1000, 100, [1.0], [1.0]).rate


def test_part_of_a_feed_interrupts_the_part_around_it(modules: dict[str, ModuleType]) -> None:
    seconds = iter([0.0, 1.0, 3.0, 6.0])
    times = modules["feed_profile"].PartTimes(now=lambda: next(seconds))
    with times.part("write"), times.part("read"):
        pass
    assert times.seconds == {"write": 4.0, "read": 2.0}


def test_benchmarks_of_the_makefile_exist_and_stop_their_servers_on_signals() -> None:
    scripts = re.findall(r"tests/bench/(\w+)\.py", (ROOT / "Makefile").read_text())
    assert len(scripts) == 11
    for script in scripts:
        assert "    exit_on_signals()\n    main()\n" in (BENCH / f"{script}.py").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stopped_benchmark_exits_its_context_managers(number: signal.Signals) -> None:
    command = [sys.executable, "-c", STOPPED]
    with subprocess.Popen(command, cwd=BENCH, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(number)
        assert process.stdout.read() == "stopped\n"
    assert process.returncode == 128 + number
