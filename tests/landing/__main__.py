"""Runs all steps of a landing and prints the timing table: `make landing`.

`make long GROUP=NAME` runs one group of the long tier, or all groups, and records each pass. A
skipped test counts as failed.
"""

from __future__ import annotations

import datetime as dt
import os
import signal
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from landing.calibration import machine_factor, measured_seconds
from landing.long_tier import (
    Due,
    Group,
    Pass,
    choose,
    due_groups,
    guarded_hash,
    has_uncommitted_changes,
    is_shallow,
    landing_days,
    read_groups,
    read_passes,
    recorded_landings,
    write_pass,
)
from landing.plan import LONG_MINUTES, MAX_TOTAL, TOTAL_BUDGET, plan
from landing.run import Landing
from landing.steps import INTERRUPTED, Result, Step, run_command
from landing.suite import SuiteResult, run_suite
from landing.table import report
from landing.verdict import failures
from support.timeouts import FACTOR

GROUPS = Path("tests/long.toml")
PASSES = Path("tests/long-passed.json")


def main(arguments: Sequence[str]) -> int:
    # a background process of a shell ignores SIGINT, and without a handler, so would the suites
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: INTERRUPTED.set())
    # options of the caller could select a part of the tests
    os.environ["PYTEST_ADDOPTS"] = "--fail-on-skip --durations=15"
    groups = read_groups(GROUPS)
    if not arguments:
        return run_landing(groups)
    (name,) = arguments
    chosen = [group for group in groups if name in (group.name, "all")]
    if not chosen:
        names = ", ".join(group.name for group in groups)
        print(f"GROUP: unknown group ({name}). Use one of {names}.")
        return 2
    return max([run_group(group) for group in chosen])


def run_landing(groups: Sequence[Group]) -> int:
    """Run every step and the due groups. Return the exit status."""
    begin = time.monotonic()
    factor = machine_factor(measured_seconds())
    hashes = {group.name: guarded_hash(group) for group in groups}
    passes = read_passes(PASSES)
    dues = due_groups(groups, passes, landing_days(), hashes)
    chosen = choose(dues, LONG_MINUTES)
    steps = plan(chosen)
    limit = min(TOTAL_BUDGET * factor, MAX_TOTAL)
    results = Landing(steps, limit, factor).run()
    seconds = time.monotonic() - begin
    passed = {each.result.step for each in results if each.result.ok}
    for due in chosen:
        if due.group.step in passed:
            _record(due.group, recorded_landings(passes) + 1, hashes[due.group.name])
    failed = failures(results, dues, seconds, limit)
    total = Result("total", "failed" if failed else "passed", seconds)
    budgets = {step.name: step.budget for step in steps} | {"total": limit / factor}
    print("\n=== landing")
    print(report([*results, SuiteResult(total)], budgets, factor))
    _print_long_tier(dues, chosen, passed)
    print("".join(f"FAILED {line}\n" for line in failed))
    print(f"{sum(each.passed for each in results)} passed, "
          f"{sum(len(each.failed) for each in results)} failed")  # fmt: skip
    return bool(failed)


def run_group(group: Group) -> int:
    """Run one group of the long tier and record a pass. Return the exit status."""
    step = Step(group.step, group.command, group.minutes * 60, is_suite=True, retry=False)
    guarded = guarded_hash(group)
    factor = {FACTOR: f"{machine_factor(measured_seconds()):.2f}"}
    suite = run_suite(step, lambda step, env: run_command(step, 3600, env | factor), again=list)
    result = suite.result
    print(f"{group.step}: {result.summary} after {result.seconds:.0f} s")
    if result.ok:
        _record(group, recorded_landings(read_passes(PASSES)), guarded)
    return not result.ok


def _record(group: Group, landing: int, guarded: str) -> None:
    """Record a pass of a group. `guarded` is the hash of its paths before it ran."""
    if has_uncommitted_changes(group) or guarded_hash(group) != guarded:
        print(f"{group.step}: not recorded, because its paths have changes. Commit them first.")
        return
    today = dt.datetime.now(dt.UTC).date().isoformat()
    write_pass(PASSES, group.name, Pass(today, landing, guarded))
    print(f"{group.step}: the pass is recorded. Commit {PASSES}.")


def _print_long_tier(dues: Sequence[Due], chosen: Sequence[Due], passed: Collection[str]) -> None:
    if is_shallow():
        print("long tier: this clone is shallow, so overdue groups are unknown. Fetch the history.")
    for due in dues:
        ran = "passed" if due.group.step in passed else "did not pass"
        state = ran if due in chosen else "due, no time" if due.changed else "not due"
        print(f"long tier: {due.group.name}: {state}, last passed {due.age} landings ago")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
