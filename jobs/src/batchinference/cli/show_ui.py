"""The command `ui`."""

from __future__ import annotations

import secrets
import sys
import tempfile
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchinference.api.kubernetes import ClusterError
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.check import outputs_are_readable
from batchinference.cli.printing import echo

DEFAULT_PORTS = range(8484, 8494)


@dataclass(frozen=True)
class UiOptions:
    """Options of `ui`."""

    targets: list[str]
    namespace: str | None
    context: str | None
    port: int | None
    """None takes the first free one of DEFAULT_PORTS."""
    browser: bool


def show_ui(options: UiOptions) -> int:
    """Serve the page until the user interrupts the program, and return the exit code."""
    if not outputs_are_readable():
        return exits.BAD_INPUT
    from batchinference.ui.jobs import GivenJobs, JobsOfNamespace
    from batchinference.ui.server import address_of, serving
    from batchinference.ui.site import Site

    place = options.namespace, options.context
    try:
        targets = [each for text in options.targets for each in _targets(Target(text, *place))]
        if options.targets and not targets:
            echo(f"ui: there are no outputs in {', '.join(options.targets)}", err=True)
            return exits.BAD_INPUT
        jobs = GivenJobs(targets) if targets else JobsOfNamespace(*place)
    except ClusterError as error:
        echo(f"ui: {error}. Or name the outputs to show", err=True)
        return exits.BAD_INPUT
    ports = DEFAULT_PORTS if options.port is None else [options.port]
    site = Site(jobs)
    try:
        with (
            serving(ports, secrets.token_urlsafe(16), site) as server,
            _announced(address_of(server), browser=options.browser),
        ):
            server.serve_forever()
    except KeyboardInterrupt:
        return exits.SUCCESS
    except OSError as error:
        echo(f"ui: --port: port {ports[-1]} cannot be used: {error}. Choose another", err=True)
        return exits.BAD_INPUT
    return exits.SUCCESS


def _targets(target: Target) -> list[Target]:
    """Return a target, or the outputs in a directory and below it."""
    from batchinference.api.outputs import outputs_below

    if target.is_job or not Path(target.text).is_dir():
        return [target]
    return [Target(output) for output in outputs_below(target.text)]


@contextmanager
def _announced(address: str, *, browser: bool) -> Iterator[None]:
    """Print the address, and open it in the browser if stdout is a terminal.

    The browser gets the path of a private file that redirects to the address. Other users can see
    the arguments of the browser's process, and the address contains the token.
    """
    echo(f"Open {address} in a browser. Press Ctrl+C to stop.")
    if not (browser and sys.stdout.isatty()):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="batchinference-ui-") as directory:
        page = Path(directory) / "open.html"
        page.write_text(f'<meta http-equiv="refresh" content="0; url={address}">')
        webbrowser.open(page.as_uri())
        yield
