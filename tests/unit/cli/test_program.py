"""The program as a whole: help, version, exit codes, and its CPU time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
import yaml
from typer.main import get_command

from batchinference import __version__
from batchinference.cli import exits, run
from batchinference.cli.main import GROUPS, MAX_SUMMARY, app
from batchinference.plan import plan_for_cluster, serialize_plan
from batchinference.rendering.config_map import JOB_PATH, PLAN_PATH, digest_of
from batchinference.spec import parse
from batchinference.spec.report import JobState, parse_failure_line
from plugins.messages import Messages
from support.documents.minimal import Document, document, model_step, python_step
from support.documents.parsed import filter_step
from support.operator.objects import report
from support.program import Invoke, WriteJob, run_program

COMMANDS = [name for names in GROUPS.values() for name in names]
WITH_DATA = ("run", "preview", "validate", "plan", "verify", "status", "list", "errors", "doctor")
HEAVY_LIBRARIES = {"ray", "torch", "transformers", "pyarrow", "numpy", "PIL", "huggingface_hub"}


def test_version_is_printed(invoke: Invoke) -> None:
    result = invoke("--version")
    assert (result.exit_code, result.stdout) == (0, f"batchinference {__version__}\n")


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["job.yaml"], "Write batchinference run job.yaml"),
        (["run", "job.yaml", "--set", "day", "2024-01-01"], "Write --set day=VALUE"),
        (["status", "job.yaml"], "Pass its output: the write.path in it"),
        (["ui", "job.yaml"], "Pass its output: the write.path in it"),
        (["ui", "s3://"], "Write s3://BUCKET/PATH"),
        (["verify", "job.yaml"], "Pass its output: the write.path in it"),
        (["status", "s3://"], "Write s3://BUCKET/PATH"),
        (["status", ""], "Pass the write.path"),
        (["plan", "job.yaml", "--sample", "9"], "add --estimate"),
        (["plan", "job.yaml", "--estimate", "--prices", "-1", "0", "0"], "number from 0"),
        (["logs", "./out", "--list", "--follow"], "only one of them at a time"),
        (["list", "nowhere"], "'nowhere' does not exist"),
        (["ui", "nowhere"], "'nowhere' is no file or directory here"),
        (["status", "rows.csv"], "'rows.csv' is a file. Pass the directory of an output"),
    ],
)
def test_a_wrong_command_line_is_answered_with_the_right_one(
    arguments: list[str], fix: str, invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    (tmp_path / "job.yaml").write_text("{}")
    (tmp_path / "rows.csv").touch()
    result = invoke(*arguments)
    assert result.exit_code == exits.BAD_INPUT
    assert fix in result.stderr


def test_help_names_every_command(invoke: Invoke) -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    program = get_command(app)
    assert sorted(program.list_commands(typer.Context(program))) == sorted(COMMANDS)
    shown = re.findall(r"^  ([a-z]+)  +(.*)$", result.stdout, re.MULTILINE)
    assert [name for name, _ in shown] == COMMANDS
    assert all(0 < len(text) <= MAX_SUMMARY and "..." not in text for _, text in shown), shown


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_names_its_argument_options_and_exit_codes(
    invoke: Invoke, command: str
) -> None:
    result = invoke(command, "--help")
    assert result.exit_code == 0
    assert all(option in result.stdout for option in ("-q, --quiet", "-v, --verbose"))
    assert ("--format" in result.stdout) == (command in WITH_DATA)
    if command not in ("init", "doctor", "list"):
        assert any(name in result.stdout for name in ("FILE", "OUTPUT", "NAME"))
    if command not in ("plan", "suspend", "resume", "cancel"):
        assert "Exit codes: 0" in result.stdout


@pytest.mark.parametrize("command", ["run", "preview", "validate", "plan"])
def test_missing_file_exits_with_2(invoke: Invoke, command: str) -> None:
    result = invoke(command, "missing.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("missing.yaml: cannot be read: ")


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([document(steps=[filter_step(expression="txt == 'a'")])], "spec.steps[0].filter: step"),
        ([document("a"), document("b")], "expected one BatchInference, found 2: a, b"),
    ],
    ids=["a column that is not there", "two jobs"],
)
def test_invalid_file_is_refused_before_ray_starts(
    invoke: Invoke, write_job: WriteJob, jobs: list[Document], message: str
) -> None:
    result = invoke("run", write_job(*jobs))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"job.yaml: {message}")
    assert len(result.stderr.splitlines()) == 1


def test_a_replaced_config_map_is_refused(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """The head pod of a RayJob has the digest of the job file that the operator rendered."""
    monkeypatch.setenv("BATCHINFERENCE_JOB_SHA256", "0" * 64)
    monkeypatch.setattr(run, "read_file_or_stdin", lambda _: yaml.safe_dump(document()))
    result = invoke("run", JOB_PATH)
    assert result.exit_code == 2
    messages.check(result.stderr)


def test_the_driver_runs_the_plan_of_the_operator(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    """The driver's version may plan the same job differently."""
    given, changed = (document(cluster={"workers": {"cpu": cpus}}) for cpus in (1, 2))
    job, other = parse(given), parse(changed)
    text, plans = serialize_plan(plan_for_cluster(other.spec)), []
    assert json.loads(text)["single_segment"] is True, "images of earlier versions require it"
    files = {JOB_PATH: yaml.safe_dump(given), PLAN_PATH: text}
    monkeypatch.setattr(run, "read_file_or_stdin", files.__getitem__)
    monkeypatch.setattr(run, "pipeline_is_installed", lambda: True)
    monkeypatch.setattr(run, "_run", lambda _job, plan, *_, **__: plans.append(plan) or report())
    for digest in (None, digest_of(text)):
        if digest is not None:
            monkeypatch.setenv("BATCHINFERENCE_PLAN_SHA256", digest)
        invoke("run", JOB_PATH, "--address", "auto")
    assert plans == [plan_for_cluster(job.spec), plan_for_cluster(other.spec)]
    files[PLAN_PATH] = '{"stages": 1}'
    result = invoke("run", JOB_PATH, "--address", "auto")
    assert (result.exit_code, len(plans)) == (2, 2)
    messages.check(result.stderr)


@pytest.fixture
def job_file(write_job: WriteJob, directory: Path) -> Path:
    steps = [filter_step(), model_step(resources={"gpu": 1}), python_step()]
    return directory / write_job(document(steps=steps))


def test_commands_without_ray_import_nothing_heavy(job_file: Path) -> None:
    code = f"""
import sys
from batchinference.cli.main import app
for options in (["validate", "--fields-only"], ["plan"], ["plan", "--format", "yaml"]):
    app([*options, {str(job_file)!r}], standalone_mode=False)
print(*{{name.partition('.')[0] for name in sys.modules}}, file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    imported = set(done.stderr.split())
    assert "batchinference" in imported
    assert imported & HEAVY_LIBRARIES == set()


def test_module_writes_results_to_stdout_and_errors_to_stderr(job_file: Path) -> None:
    program = [sys.executable, "-m", "batchinference", "validate", "--fields-only"]
    command = [*program, str(job_file), "nowhere", "-"]
    binary = b"\xff\xfe\x00"
    done = subprocess.run(command, input=binary, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.decode()) == (2, f"{job_file}: job is valid\n")
    missing, unreadable = done.stderr.splitlines()
    assert missing.startswith(b"nowhere: cannot be read: ")
    assert unreadable.startswith(b"-: ")


def test_rendered_job_can_be_piped_into_plan(invoke: Invoke, job_file: Path) -> None:
    config_map, *_ = yaml.safe_load_all(invoke("plan", str(job_file), "-o", "yaml").stdout)
    again = invoke("plan", "-", stdin=config_map["data"]["job.yaml"])
    assert again.exit_code == 0
    assert again.stdout == invoke("plan", str(job_file)).stdout


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "latin-1"])
def test_file_in_another_encoding_is_refused_with_the_fix(
    invoke: Invoke, directory: Path, encoding: str, messages: Messages
) -> None:
    (directory / "job.yaml").write_text("# größer\nkind: BatchInference\n", encoding=encoding)
    result = invoke("validate", "--fields-only", "job.yaml")
    assert result.exit_code == 2
    messages.check(result.stderr)


@pytest.mark.parametrize("on_a_cluster", [True, False])
def test_driver_that_fails_ends_its_log_with_the_cause(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    on_a_cluster: bool,
) -> None:
    """If the report is lost with the head, KubeRay still has the end of the log."""
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(document()))
    failed = report(
        JobState.FAILED, reason="StorageUnavailable", message="s3://lake is away", passNumber=1
    )
    monkeypatch.setattr(run, "pipeline_is_installed", lambda: True)
    monkeypatch.setattr(run, "_run", lambda *_, **__: failed)
    options = run.RunOptions(address="auto", report_directory=tmp_path if on_a_cluster else None)
    assert run.run_file(str(tmp_path / "job.yaml"), options) == 1
    *_, last = ["", *capsys.readouterr().err.splitlines()]
    line = parse_failure_line(last)
    assert line == (("StorageUnavailable", "s3://lake is away") if on_a_cluster else None)


def test_run_refuses_ray_client(messages: Messages) -> None:
    done = run_program("run", "job.yaml", "--address", "ray://head:10001")
    assert done.exit_code == exits.BAD_INPUT
    messages.check(done.stderr)
