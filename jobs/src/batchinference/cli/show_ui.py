"""The command `ui`."""

from __future__ import annotations

import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import typer

from batchinference.api.cluster_error import ClusterError
from batchinference.api.output_status import outputs_below
from batchinference.api.targets import Target, check_address
from batchinference.cli import exits
from batchinference.cli.exit_on_error import exit_on_cluster_error, read_output
from batchinference.cli.installed_packages import outputs_are_readable
from batchinference.cli.printing import echo
from batchinference.spec.addresses import is_local

DEFAULT_PORTS = range(8484, 8494)


def show_ui(
    names: Sequence[str],
    namespace: str | None,
    context: str | None,
    ports: Sequence[int],
    *,
    browser: bool,
) -> int:
    """Serve the page of outputs and jobs on the first free port of `ports`, until the user
    interrupts the program. Return the exit code."""
    if not outputs_are_readable():
        return exits.BAD_INPUT
    from batchinference.ui.observed_jobs import GivenJobs, JobsOfNamespace
    from batchinference.ui.server import address_of, serving
    from batchinference.ui.site import Site

    targets = [each for name in names for each in _targets(Target(name, namespace, context))]
    try:
        jobs = GivenJobs(targets) if targets else JobsOfNamespace(namespace, context)
    except ClusterError as error:
        echo(f"ui: {error}. Or name the outputs to show", err=True)
        return exits.BAD_INPUT
    try:
        with (
            serving(ports, secrets.token_urlsafe(16), Site(jobs)) as server,
            _print_and_open(address_of(server), browser=browser),
        ):
            server.serve_forever()
    except KeyboardInterrupt:
        return exits.SUCCESS
    except OSError as error:
        echo(f"ui: --port: port {ports[-1]} cannot be used: {error}. Choose another", err=True)
        return exits.BAD_INPUT
    return exits.SUCCESS


def _targets(target: Target) -> list[Target]:
    """Return the outputs in and below a local directory. Return any other target unchanged. Exits
    with code 2 for an invalid address, a directory without outputs, or a job without a cluster."""
    if target.is_job:
        with exit_on_cluster_error("ui"):
            target.cluster()
        return [target]
    with exit_on_cluster_error("ui"):
        check_address(target.text)
    if not is_local(target.text):
        return [target]
    outputs = read_output("ui", target, outputs_below)
    if not outputs:
        echo(f"ui: there are no outputs in {target.text}", err=True)
        raise typer.Exit(exits.BAD_INPUT)
    return [Target(output) for output in outputs]


@contextmanager
def _print_and_open(address: str, *, browser: bool) -> Iterator[None]:
    """Print the address, and open it in the browser if stdout is a terminal. The address contains
    the token, and other users can see the arguments of processes. So the browser opens a private
    file that redirects to the address."""
    echo(f"Open {address} in a browser. Press Ctrl+C to stop.")
    if not (browser and sys.stdout.isatty()):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="batchinference-ui-") as directory:
        page = Path(directory) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
        webbrowser.open(page.as_uri())
        yield
