"""The few lines that a user of another tool writes to read the input of a case.

Each module reads a format with the documented defaults of its tool, and with the options that a
case names. It returns rows as Python values: pictures as arrays of height x width x channels,
sounds as arrays of samples.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from traps.case import Case, Outcome

NAMES = {"ray": "Ray Data", "daft": "Daft", "datasets": "`datasets`", "pandas": "pandas"}
"""The tools by their package."""
_MODULES = {name: f"traps.peers.with_{name}" for name in NAMES}
_LOGGERS = ("", "ray", "datasets", "transformers", "daft")


class NotSupported(Exception):
    """The tool has no reader or no function for a case. The message says which."""


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def outcome_of(case: Case, name: str, directory: Path) -> Outcome:
    """Run a case with another tool. Raises NotSupported."""
    given = case.peers.get(name, {})
    if isinstance(given, str):
        raise NotSupported(given)
    module = importlib.import_module(_MODULES[name])
    read = given if callable(given) else _reader(module, case)
    options = {} if callable(given) else given
    with _said() as said:
        try:
            rows = read(directory, **options)
        except NotSupported:
            raise
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return Outcome(error=f"{type(error).__name__}: {str(error)[:2000]}")
    return Outcome(rows=rows, said="\n".join(said))


def _reader(module: ModuleType, case: Case):  # type: ignore[no-untyped-def]
    name = f"read_{case.format}"
    if case.steps or not hasattr(module, name):
        raise NotSupported("no such function" if case.steps else f"no reader for {case.format}")
    return getattr(module, name)


@contextmanager
def _said() -> Iterator[list[str]]:
    """Yield a list of everything that the tool warns about."""
    said: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    handler = Handler(logging.WARNING)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield said
            said += [str(each.message) for each in caught]
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
