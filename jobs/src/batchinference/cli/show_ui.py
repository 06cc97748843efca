"""The command `ui`."""

from __future__ import annotations

import secrets
import sys
import webbrowser
from dataclasses import dataclass

from batchinference.api.kubernetes import ClusterError
from batchinference.api.targets import Target
from batchinference.cli import exits
from batchinference.cli.check import pipeline_is_installed
from batchinference.cli.printing import echo


@dataclass(frozen=True)
class UiOptions:
    """Options of `ui`."""

    targets: list[str]
    namespace: str | None
    context: str | None
    port: int
    job: str | None
    """The user's job file, whose model embeds search queries."""
    trusted: bool
    browser: bool


def show_ui(options: UiOptions) -> int:
    """Serve the page until the user interrupts the program, and return the exit code."""
    if not pipeline_is_installed():
        return exits.BAD_INPUT
    from batchinference.ui.jobs import GivenJobs, JobsOfNamespace
    from batchinference.ui.server import address_of, serving
    from batchinference.ui.site import SearchTrust, Site

    place = options.namespace, options.context
    try:
        targets = [Target(text, *place) for text in options.targets]
        jobs = GivenJobs(targets) if targets else JobsOfNamespace(*place)
    except ClusterError as error:
        echo(f"ui: {error}. Or name the outputs to show", err=True)
        return exits.BAD_INPUT
    site = Site(jobs, SearchTrust(options.job, options.trusted))
    try:
        with serving(options.port, secrets.token_urlsafe(16), site) as server:
            _announce(address_of(server), browser=options.browser)
            server.serve_forever()
    except KeyboardInterrupt:
        return exits.SUCCESS
    except OSError as error:
        echo(f"ui: --port: port {options.port} cannot be used: {error}. Choose another", err=True)
        return exits.BAD_INPUT
    return exits.SUCCESS


def _announce(address: str, *, browser: bool) -> None:
    echo(f"Open {address} in a browser. Press Ctrl+C to stop.")
    if browser and sys.stdout.isatty():
        webbrowser.open(address)
