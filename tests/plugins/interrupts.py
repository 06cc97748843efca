"""Prints the output of a test that is interrupted, and where it hangs.

pytest shows neither, and pytest-xdist does not even name the test. A landing interrupts a suite at
its deadline (see landing/steps.py).
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    except KeyboardInterrupt as interrupt:
        print(f"\ninterrupted: {item.nodeid}", file=sys.stderr)
        for when, stream, text in item._report_sections:
            print(f"captured {stream} {when}:\n{text}", file=sys.stderr)
        traceback.print_exception(interrupt, limit=-5)
        sys.stderr.flush()
        raise
