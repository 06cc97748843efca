"""Runs commands against jobs on the cluster, and compares what kubectl shows with a page of docs/.

Numbers and times may differ from the page; columns and fields may not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from support.cluster.deployment import ROOT
from support.cluster.kubectl import Kubectl
from support.cluster.object_store import KEYS, ObjectStore
from support.documents.recordings import Shown, compare_with_page, page_of, thinned
from support.timeouts import scaled

COMMAND_SECONDS = 120
OUTPUT_COMMANDS = ("errors", "logs")
"""Commands that read the output of a job."""
_FIELD = re.compile(r"^ {0,2}([A-Z][A-Za-z ]+):")
"""A field of `kubectl describe`. Fields that are indented further depend on the progress."""
_LOG_LINE = re.compile(
    r"^(?:\d{4}-\S+Z [^:]+|[\w-]+(?=: (?:connecting|preparing|running|finalizing)\b)): (\w+)"
)
"""A line of a log that the driver itself has added. The others are the output of Ray."""


@dataclass(frozen=True)
class CommandLine:
    """`batchinference` on this machine, for the jobs of a namespace."""

    kubectl: Kubectl
    store: ObjectStore

    def __call__(self, verb: str, name: str, *options: str) -> Shown:
        """Run a command for a job. It can read the object store, as on the machine of a user."""
        with self._environment() as environment:
            done = subprocess.run(
                self._command(verb, name, *options),
                env=environment,
                capture_output=True,
                text=True,
                timeout=scaled(COMMAND_SECONDS),
                check=False,
            )
        return self._shown(verb, name, done.stdout or done.stderr, done.returncode, *options)

    @contextmanager
    def watching(self, name: str, shown: list[Shown]) -> Iterator[None]:
        """Run `status --watch` from the start of the block to the job's end. Add it to `shown`."""
        command = self._command("status", name, "--watch")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield
                printed, _ = process.communicate(timeout=scaled(COMMAND_SECONDS))
            finally:
                process.kill()  # if the block has failed
        shown.append(self._shown("status", name, printed, process.returncode, "--watch"))

    @contextmanager
    def serving(self, name: str) -> Iterator[str]:
        """Run `ui` for a job during the block, and yield its address."""
        command = self._command("ui", name, "--no-browser", "--port", "0")
        with (
            self._environment() as environment,
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, text=True
            ) as process,
        ):
            assert process.stdout is not None
            try:
                line = process.stdout.readline()
                match = re.search(r"http://\S+/", line)
                assert match, f"batchinference ui has failed: {line}"
                yield match[0]
            finally:
                process.terminate()

    def of_output(self, name: str) -> list[Shown]:
        """Return what the commands that read the output of a job show."""
        return [self(verb, name) for verb in OUTPUT_COMMANDS]

    def report_of(self, output: str) -> dict[str, Any]:
        """Return the stored report of the last run of an output."""
        command = [sys.executable, "-m", "batchinference", "status", output, "--format", "json"]
        with self._environment() as environment:
            printed = subprocess.check_output(
                command, env=environment, text=True, timeout=scaled(COMMAND_SECONDS)
            )
        (status,) = json.loads(printed)
        report: dict[str, Any] = status["report"]
        return report

    @contextmanager
    def _environment(self) -> Iterator[dict[str, str]]:
        """Yield the environment of a command that can read the object store during the block."""
        with self.store.forwarded() as address:
            yield {**os.environ, **KEYS, "AWS_ENDPOINT_URL": address}

    def _command(self, verb: str, name: str, *options: str) -> list[str]:
        within = ("--namespace", self.kubectl.namespace)
        return [sys.executable, "-m", "batchinference", verb, name, *within, *options]

    def _shown(self, verb: str, name: str, text: str, exit_code: int, *options: str) -> Shown:
        command = ["batchinference", verb, name, *options, "-n", self.kubectl.namespace]
        return _shortened(verb, Shown(" ".join(command), text, exit_code))


def is_watched(shown: Shown) -> bool:
    """Return whether this is the output of `status --watch`."""
    return "--watch" in shown.command and shown.command.startswith("batchinference")


def _shortened(verb: str, shown: Shown) -> Shown:
    """Keep the first line of each watched state, and the lines of the driver in a log."""
    if is_watched(shown):
        return replace(shown, text=thinned(shown.lines, [_state(line) for line in shown.lines]))
    if verb == "logs" and not shown.exit_code:
        return replace(shown, text="\n".join(filter(_LOG_LINE.match, shown.lines)) + "\n")
    return shown


def _state(line: str) -> str:
    return line.split(",", maxsplit=1)[0]


def shape(shown: Shown) -> list[str]:
    """Return what must be the same on the page."""
    fields = [match.group(1) for line in shown.lines if (match := _FIELD.match(line))]
    return fields or shown.lines[0].split()


def anonymous(sections: dict[str, list[Shown]], namespace: str) -> dict[str, list[Shown]]:
    """Return the commands as if they had been run in the namespace `team`."""
    return {
        title: [
            replace(
                shown,
                command=in_team(shown.command, namespace),
                text=in_team(shown.text, namespace),
            )
            for shown in commands
        ]
        for title, commands in sections.items()
    }


def in_team(text: str, namespace: str) -> str:
    """Return a text with the namespace `team` instead of another one."""
    return text.replace(namespace, "team")


def check_page(page: str, head: str, sections: dict[str, list[Shown]], *, write: bool) -> None:
    """Fail if a page of docs/ differs from these commands. With `write`, write it first."""
    if write:
        (ROOT / page).write_text(page_of(head, sections))
    compare_with_page(page, sections, shape, "make transcript")
