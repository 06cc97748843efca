"""Resolves the argument of a command: an output path, or the name of a job on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from batchinference.api.kubernetes import ClusterError, Kubernetes
from batchinference.cli import exits
from batchinference.cli.printing import echo


@dataclass(frozen=True)
class Target:
    """The path of an output, or the name of a job on a cluster."""

    text: str
    namespace: str | None = None
    context: str | None = None

    @property
    def is_job(self) -> bool:
        """Whether this is the name of a job: a namespace or context is given, or it is no path."""
        if self.namespace or self.context:
            return True
        is_path = "/" in self.text or self.text.startswith((".", "~")) or Path(self.text).exists()
        return not is_path

    def cluster(self) -> Kubernetes:
        return Kubernetes(self.namespace, self.context)

    def output(self) -> str:
        """Return the path of the output. For a job, it is read from its status or its spec.

        Raises ClusterError.
        """
        if not self.is_job:
            return str(Path(self.text).expanduser()) if "://" not in self.text else self.text
        job = self.cluster().get(self.text)
        return str(job.get("status", {}).get("output") or job["spec"]["write"]["path"])


@contextmanager
def exit_on_cluster_error(command: str) -> Iterator[None]:
    """Print a ClusterError as one line, and exit with code 2."""
    try:
        yield
    except ClusterError as error:
        echo(f"{command}: {error}", err=True)
        raise typer.Exit(exits.BAD_INPUT) from None


def read_output(command: str, target: Target, read: Callable[[str], Any]) -> Any:
    """Return the result of `read` for the output of a target. On failure, print it and exit."""
    from batchinference.cli.check import pipeline_is_installed

    if not pipeline_is_installed():
        raise typer.Exit(exits.BAD_INPUT)
    from batchinference.pipeline.errors import JobFailure, shown

    with exit_on_cluster_error(command):
        output = target.output()
        try:
            return read(output)
        except JobFailure as failure:
            echo(f"{command}: {failure.message}", err=True)
            raise typer.Exit(exits.BAD_INPUT) from None
        except OSError as error:
            echo(f"{command}: '{output}' cannot be read: {shown(str(error))}", err=True)
            raise typer.Exit(exits.BAD_INPUT) from None
