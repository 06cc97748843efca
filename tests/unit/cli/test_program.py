"""The program as a whole: help, version, exit codes, and how soon it answers."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from batchinference import __version__
from batchinference.cli.main import app
from support.commands import PROGRAM
from support.documents import document, model_step, python_step
from support.specs import filter_step

Invoke = Callable[..., Result]
WriteJob = Callable[..., str]
COMMANDS = ["run", "retry-errors", "validate", "plan", "render", "search", "verify"]
SECONDS = 0.5
HEAVY = {"ray", "torch", "transformers", "pyarrow", "numpy", "PIL", "huggingface_hub"}


def test_the_version(invoke: Invoke) -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"batchinference {__version__}\n")


def test_help_names_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    assert all(command in result.stdout for command in COMMANDS)


def test_every_command_is_in_these_tests() -> None:
    functions = [command.callback.__name__ for command in app.registered_commands]
    assert [name.replace("_", "-") for name in functions] == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(invoke: Invoke, command: str) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert "FILE" in result.stdout or "OUTPUT" in result.stdout


@pytest.mark.parametrize("command", ["run", "validate", "search", "verify"])
def test_help_says_what_the_exit_codes_mean(invoke: Invoke, command: str) -> None:
    assert "Exit codes: 0" in invoke(command, "--help").stdout


def test_without_arguments_there_is_help(invoke: Invoke) -> None:
    shown = invoke()
    assert shown.exit_code == 2
    assert "Usage" in shown.output
    assert all(command in shown.output for command in COMMANDS)


@pytest.mark.parametrize("arguments", [["nonsense"], ["plan", "--nonsense"], ["plan", "a", "b"]])
def test_what_the_program_does_not_know_is_bad_input(invoke: Invoke, arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["run", "validate", "plan", "render"])
def test_bad_input_is_told_by_the_exit_code_and_on_stderr(invoke: Invoke, command: str) -> None:
    result = invoke(command, "missing.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("missing.yaml: cannot be read: ")


def test_a_job_that_cannot_run_here_is_refused_before_ray_starts(
    invoke: Invoke, write_job: WriteJob
) -> None:
    wrong = document(steps=[filter_step(expression="txt == 'a'")])
    result = invoke("run", write_job(wrong))
    assert result.exit_code == 2
    assert result.stderr.startswith("job.yaml: spec.steps[0]: step 'keep' reads column 'txt'")


@pytest.fixture
def job_file(write_job: WriteJob, directory: Path) -> Path:
    steps = [filter_step(), model_step(resources={"gpu": 1}), python_step()]
    return directory / write_job(document(steps=steps))


def ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own."""
    return subprocess.run(
        [PROGRAM, *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def seconds_of(*arguments: str | Path) -> float:
    """How long the program computes. A clock would also count what others do on this machine."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert ran(*arguments).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("command", ["--help", "validate", "plan", "render"])
def test_what_needs_no_ray_answers_at_once(job_file: Path, command: str) -> None:
    arguments = [command] if command == "--help" else [command, job_file]
    assert min(seconds_of(*arguments) for _ in range(5)) < SECONDS


@pytest.mark.parametrize("command", ["--help", "validate", "plan", "render"])
def test_what_needs_no_ray_imports_nothing_heavy(job_file: Path, command: str) -> None:
    arguments = [command] if command == "--help" else [command, str(job_file)]
    code = f"""
import sys
from batchinference.cli.main import app
try:
    app({arguments!r})
finally:
    print(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    imported = set(done.stderr.split())
    assert "batchinference" in imported
    assert imported & HEAVY == set()


@pytest.mark.parametrize("module", ["batchinference", "batchinference.cli.main"])
def test_python_runs_the_program_as_a_module(job_file: Path, module: str) -> None:
    command = [sys.executable, "-m", module, "validate", str(job_file), "nowhere.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, f"{job_file}: job is valid\n")


def test_what_is_wrong_stands_on_stderr_and_what_is_asked_for_on_stdout(job_file: Path) -> None:
    done = ran("validate", job_file, "nowhere.yaml")
    assert done.returncode == 2
    assert done.stdout == f"{job_file}: job is valid\n"
    assert done.stderr.startswith("nowhere.yaml: cannot be read: ")


def test_bytes_that_are_no_text_are_refused_on_stdin_as_well() -> None:
    done = subprocess.run(
        [PROGRAM, "validate", "-"], input=b"\xff\xfe\x00", capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(b"-: ")
    assert b"Traceback" not in done.stderr


def test_what_is_rendered_can_be_piped_into_plan_again(job_file: Path) -> None:
    config_map, *_ = yaml.safe_load_all(ran("render", job_file).stdout)
    again = subprocess.run(
        [PROGRAM, "plan", "-"],
        input=config_map["data"]["job.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.stdout == ran("plan", job_file).stdout
