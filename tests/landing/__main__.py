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
from collections.abc import Sequence
from pathlib import Path

from landing.calibration import machine_factor, measured_seconds
from landing.long_tier import (
    Due,
    Group,
    choose,
    due_groups,
    guarded_hash,
    landing_days,
    read_groups,
    read_passes,
    write_pass,
)
from landing.plan import LONG_MINUTES, TOTAL_BUDGET, plan
from landing.run import Landing
from landing.steps import Result, Step, run_command
from landing.suite import SuiteResult, run_suite
from landing.table import report
from landing.verdict import failures

GROUPS = Path("tests/long.toml")
PASSES = Path("tests/long-passed.json")


def main(arguments: Sequence[str]) -> int:
    # background processes of a shell ignore SIGINT, and so would the suites (see run_command)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["PYTEST_ADDOPTS"] = f"{os.environ.get('PYTEST_ADDOPTS', '')} --fail-on-skip"
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
    dues = due_groups(groups, read_passes(PASSES), landing_days(), hashes)
    chosen = choose(dues, LONG_MINUTES)
    steps = plan(chosen)
    limit = TOTAL_BUDGET * factor
    results = Landing(steps, limit, factor).run()
    seconds = time.monotonic() - begin
    _record(chosen, results)
    failed = failures(results, dues, seconds, limit)
    total = Result("total", "failed" if failed else "passed", seconds)
    budgets = {step.name: step.budget for step in steps} | {"total": TOTAL_BUDGET}
    print("\n=== landing")
    print(report([*results, SuiteResult(total)], budgets, factor))
    _print_long_tier(dues, chosen)
    print("".join(f"FAILED {line}\n" for line in failed))
    print(f"{sum(each.passed for each in results)} passed, "
          f"{sum(len(each.failed) for each in results)} failed")  # fmt: skip
    return bool(failed)


def run_group(group: Group) -> int:
    """Run one group of the long tier and record a pass. Return the exit status."""
    step = Step(group.step, group.command, group.minutes * 60, is_suite=True, retry=False)
    result = run_suite(step, lambda step, env: run_command(step, 3600, env), again=list).result
    print(f"{group.step}: {result.summary} after {result.seconds:.0f} s")
    if result.ok:
        _record_pass(group)
    return not result.ok


def _record(chosen: Sequence[Due], results: Sequence[SuiteResult]) -> None:
    passed = {each.result.step for each in results if each.result.ok}
    for due in chosen:
        if due.group.step in passed:
            _record_pass(due.group)


def _record_pass(group: Group) -> None:
    today = dt.datetime.now(dt.UTC).date().isoformat()
    write_pass(PASSES, group, today, guarded_hash(group))


def _print_long_tier(dues: Sequence[Due], chosen: Sequence[Due]) -> None:
    for due in dues:
        state = "ran" if due in chosen else "due, no time" if due.changed else "not due"
        print(f"long tier: {due.group.name}: {state}, last passed {due.age} landings ago")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
