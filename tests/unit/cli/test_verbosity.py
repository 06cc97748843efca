"""The options `--quiet` and `--verbose`, which all commands have."""

from __future__ import annotations

import logging
import re

import pytest

from batchinference.cli import verbosity
from batchinference.cli.verbosity import LOGGER, is_quiet, is_verbose, note, with_verbosity
from plugins.messages import Messages
from support.documents.minimal import document
from support.program import Invoke, WriteJob, run_program


def test_both_options_together_are_refused(
    invoke: Invoke, write_job: WriteJob, messages: Messages
) -> None:
    done = invoke("validate", "--fields-only", write_job(document()), "-q", "-v")
    assert (done.exit_code, done.stdout) == (2, "")
    messages.check(done.stderr)


def test_quiet_command_prints_only_problems(invoke: Invoke, write_job: WriteJob) -> None:
    valid, wrong = write_job(document()), write_job(document(write={}), file="wrong.yaml")
    done = invoke("validate", "--fields-only", "--quiet", valid, wrong)
    assert (done.exit_code, done.stdout) == (2, "")
    assert re.fullmatch(r"wrong\.yaml: spec\.write\.format: required, .*\n", done.stderr)
    assert invoke("init", "-q", "text", "--file", "new.yaml").output == ""
    assert invoke("validate", "--fields-only", "-q", "new.yaml").output == ""
    assert invoke("validate", "--fields-only", "new.yaml").stdout == "new.yaml: new is valid\n"


def test_results_are_printed_although_a_command_is_quiet(
    invoke: Invoke, write_job: WriteJob
) -> None:
    file = write_job(document())
    assert invoke("plan", "-q", file).stdout == invoke("plan", file).stdout != ""


def test_verbose_command_prints_details_to_stderr() -> None:
    seen = []

    def command(name: str) -> None:
        seen.append((name, is_quiet(), is_verbose()))
        note("done")
        logging.getLogger(f"{verbosity.LOGGER.name}.api").debug("GET %s", name)

    run = with_verbosity(command)
    run(name="a", quiet=False, verbose=False)
    run(name="b", quiet=True, verbose=False)
    run(name="c", quiet=False, verbose=True)
    assert seen == [("a", False, False), ("b", True, False), ("c", False, True)]
    assert (is_quiet(), is_verbose(), LOGGER.handlers) == (False, False, [])


@pytest.mark.parametrize(
    ("options", "stdout", "stderr"),
    [([], "done\n", ""), (["-q"], "", ""), (["-v"], "done\n", "GET x\n")],
)
def test_what_a_command_prints(
    monkeypatch: pytest.MonkeyPatch, options: list[str], stdout: str, stderr: str
) -> None:
    def finish(*_: object, **__: object) -> int:
        note("done")
        logging.getLogger("batchinference.api").debug("GET %s", "x")
        return 0

    monkeypatch.setattr("batchinference.cli.validate_and_plan.show_plan", finish)
    done = run_program("plan", "job.yaml", *options)
    assert (done.exit_code, done.stdout, done.stderr) == (0, stdout, stderr)
