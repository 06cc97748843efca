"""The argument of a command: the path of an output, or the name of a job on a cluster."""

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
        """Whether this is the name of a job: it is no path, or a namespace or context is given."""
        if self.namespace or self.context:
            return True
        is_path = "/" in self.text or self.text.startswith((".", "~")) or Path(self.text).exists()
        return not is_path

    def cluster(self) -> Kubernetes:
        return Kubernetes(self.namespace, self.context)

    def output(self) -> str:
        """Return the path of the output; of a job, as its status or its spec has it.

        Raises ClusterError."""
        if not self.is_job:
            return str(Path(self.text).expanduser()) if "://" not in self.text else self.text
        job = self.cluster().get(self.text)
        return str(job.get("status", {}).get("output") or job["spec"]["write"]["path"])


@contextmanager
def failures_are_printed(command: str) -> Iterator[None]:
    """Print the failures of a command in one line, and exit with the code for them."""
    try:
        yield
    except ClusterError as error:
        echo(f"{command}: {error}", err=True)
        raise typer.Exit(exits.BAD_INPUT) from None


def read_output(command: str, target: Target, read: Callable[[str], Any]) -> Any:
    """Return what `read` returns for the output of a target. Print failures, and exit."""
    from batchinference.cli.check import pipeline_is_installed

    if not pipeline_is_installed():
        raise typer.Exit(exits.BAD_INPUT)
    from batchinference.pipeline.errors import JobFailure, shown

    with failures_are_printed(command):
        output = target.output()
        try:
            return read(output)
        except JobFailure as failure:
            echo(f"{command}: {failure.message}", err=True)
            raise typer.Exit(exits.BAD_INPUT) from None
        except OSError as error:
            echo(f"{command}: '{output}' cannot be read: {shown(str(error))}", err=True)
            raise typer.Exit(exits.BAD_INPUT) from None
