"""Makes `os.fsync` do nothing in the process of the tests.

Only a crash of the machine loses data that was written without it.
"""

from __future__ import annotations

import os


def pytest_configure() -> None:
    os.fsync = lambda _: None
