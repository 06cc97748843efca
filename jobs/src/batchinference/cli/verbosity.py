"""The options `--quiet` and `--verbose`, which all commands have."""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Annotated, Any

import typer

from batchinference.cli.printing import echo

LOGGER = logging.getLogger("batchinference")
"""The logger of details that only `--verbose` shows."""
_current = ContextVar("verbosity", default="normal")
"""The verbosity of the running command: `quiet`, `normal` or `verbose`."""
_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print only results, warnings and errors.")
]
_Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Also print requests, retries and Ray's messages.")
]
_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind)
    for name, kind in (("quiet", _Quiet), ("verbose", _Verbose))
]


def is_quiet() -> bool:
    """Return whether the command was called with `--quiet`."""
    return _current.get() == "quiet"


def is_verbose() -> bool:
    """Return whether the command was called with `--verbose`."""
    return _current.get() == "verbose"


def note(text: str, *, err: bool = False) -> None:
    """Print a confirmation or a note. Do nothing if the command is quiet."""
    if not is_quiet():
        echo(text, err=err)


def with_verbosity(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the command with the additional options `--quiet` and `--verbose`."""

    @functools.wraps(command)
    def run(*, quiet: bool, verbose: bool, **arguments: Any) -> Any:
        if quiet and verbose:
            problem = "contradicts --verbose. Remove one of them"
            raise typer.BadParameter(problem, param_hint="--quiet")
        with _verbosity(quiet=quiet, verbose=verbose):
            return command(**arguments)

    signature = inspect.signature(command, eval_str=True)
    parameters = [*signature.parameters.values(), *_OPTIONS]
    setattr(run, "__signature__", signature.replace(parameters=parameters))  # noqa: B010
    return run


@contextmanager
def _verbosity(*, quiet: bool, verbose: bool) -> Iterator[None]:
    """Set the verbosity within the block. If it is `verbose`, also print log messages to stderr."""
    token = _current.set("verbose" if verbose else "quiet" if quiet else "normal")
    handler, level = _Printer(), LOGGER.level
    if verbose:
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        _current.reset(token)
        LOGGER.removeHandler(handler)
        LOGGER.setLevel(level)


class _Printer(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(record.getMessage(), err=True)
