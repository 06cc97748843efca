"""Reads outputs and jobs for commands, and exits with a message if they cannot be read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from batchinference.api.cluster_error import ClusterError
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.installed_packages import outputs_are_readable
from batchinference.cli.printing import echo
from batchinference.pipeline.errors import JobFailure, redact


@contextmanager
def exit_on_cluster_error(command: str) -> Iterator[None]:
    """Print a ClusterError as one line, and exit with code 2."""
    try:
        yield
    except ClusterError as error:
        echo(f"{command}: {error}", err=True)
        raise typer.Exit(exits.BAD_INPUT) from None


def read_output(command: str, target: Target, read: Callable[[str], Any]) -> Any:
    """Return the result of `read` for the output of a target. If the output cannot be read, print
    the error and exit with code 2."""
    if not outputs_are_readable():
        raise typer.Exit(exits.BAD_INPUT)
    with exit_on_cluster_error(command):
        output = target.output()
        try:
            return read(output)
        except JobFailure as failure:
            echo(f"{command}: {failure.message}", err=True)
            raise typer.Exit(exits.BAD_INPUT) from None
        except OSError as error:
            echo(f"{command}: '{output}' cannot be read: {redact(str(error))}", err=True)
            if endpoint := target.missing_endpoint():
                echo(
                    f"The pods of the job have {endpoint}. Set this variable and the credentials "
                    "here. `kubectl port-forward` makes a Service of the cluster reachable.",
                    err=True,
                )
            raise typer.Exit(exits.BAD_INPUT) from None
