"""`batchinference validate`: problems of files are reported without running a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from plugins.messages import Messages
from support.documents.minimal import document, model_step, schedule_document
from support.documents.parsed import filter_step
from support.program import Invoke, WriteJob

ROOT = Path(__file__).parents[3]
INVALID = filter_step(expression="txt == 'a'")
INVALID_MESSAGE = (
    "spec.steps[0].filter: step 'keep' reads column 'txt', but the columns here are text; "
    "did you mean 'text'?"
)


def test_validate_accepts_local_paths_and_ignores_other_objects(
    invoke: Invoke, write_job: WriteJob
) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}}
    for write in ({"format": "parquet", "path": "./out"}, {"format": "json", "path": "s3://out/"}):
        file = write_job(secret, document("mine", write=write))
        result = invoke("validate", "--fields-only", file)
        assert result.exit_code == 0
        assert (result.stdout, result.stderr) == ("job.yaml: mine is valid\n", "")


def test_validate_notes_a_replaced_column(invoke: Invoke, write_job: WriteJob) -> None:
    steps = [model_step("one"), model_step("two")]
    result = invoke("validate", "--fields-only", write_job(document("mine", steps=steps)))
    (valid, note) = result.stdout.splitlines()
    assert (result.exit_code, valid) == (0, "job.yaml: mine is valid")
    assert note.startswith("job.yaml: note: step 'two' replaces column 'embedding' of step 'one'")


@pytest.mark.parametrize("command", [("validate", "--fields-only"), ("plan",)])
def test_maximum_memory_without_effect_is_noted(
    invoke: Invoke, write_job: WriteJob, messages: Messages, command: tuple[str, ...]
) -> None:
    steps = [model_step("small", resources={"gpu": 1, "memory": "8Gi"}), model_step("large")]
    steps[1]["resources"] = {"gpu": 1, "memory": "16Gi"}
    retry = {"outOfMemory": {"maxMemory": "12Gi"}}
    result = invoke(*command, write_job(document("mine", steps=steps, retry=retry)))
    assert result.exit_code == 0
    (note,) = (line for line in result.stdout.splitlines() if "maxMemory" in line)
    messages.check(note)


def test_validate_continues_after_an_invalid_job(
    invoke: Invoke, write_job: WriteJob, messages: Messages
) -> None:
    jobs = [
        document("a", steps=[INVALID]),
        document("b", write={}),
        document("c"),
        document("d", steps=[INVALID]),
    ]
    first, last = (write_job(document(name), file=f"{name}.yaml") for name in "az")
    result = invoke("validate", "--fields-only", first, write_job(*jobs), last)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == [
        "a.yaml: a is valid",
        "job.yaml (BatchInference 3): c is valid",
        "z.yaml: z is valid",
    ]
    messages.check(result.stderr.splitlines())


def test_validate_reads_stdin(invoke: Invoke) -> None:
    result = invoke("validate", "--fields-only", "-", stdin=yaml.safe_dump(document("piped")))
    assert (result.exit_code, result.stdout) == (0, "-: piped is valid\n")
    result = invoke(
        "validate", "--fields-only", "-", stdin=yaml.safe_dump(document(steps=[INVALID]))
    )
    assert (result.exit_code, result.stderr) == (2, f"-: {INVALID_MESSAGE}\n")


@pytest.mark.parametrize("file", ["missing.yaml", "folder", "binary"])
def test_validate_continues_after_an_unreadable_file(
    invoke: Invoke, write_job: WriteJob, directory: Path, file: str
) -> None:
    (directory / "folder").mkdir()
    (directory / "binary").write_bytes(b"\x7fELF\xff\xfe\x00")
    result = invoke("validate", "--fields-only", file, write_job(document("mine")))
    assert (result.exit_code, result.stdout) == (2, "job.yaml: mine is valid\n")
    assert result.stderr.startswith(f"{file}: cannot be read: ")
    assert len(result.stderr.splitlines()) == 1
    assert "Errno" not in result.stderr


def test_missing_file_names_a_similar_one(
    invoke: Invoke, write_job: WriteJob, messages: Messages
) -> None:
    write_job(document("mine"))
    for file in ("jobs.yml", "other/x.yaml", "."):
        messages.check(invoke("validate", "--fields-only", file).stderr)


def test_validate_sets_parameters(invoke: Invoke, write_job: WriteJob) -> None:
    write = {"format": "parquet", "path": "s3://out/{{ params.date }}"}
    file = write_job(document("daily", parameters=[{"name": "date"}], write=write))
    assert invoke("validate", "--fields-only", file, "--set", "date=2026-01-31").exit_code == 0
    assert "'{{" not in invoke("plan", file, "--set", "date=2026-01-31").output
    assert "path: s3://out/a=b" in invoke("plan", file, "-o", "yaml", "--set", "date=a=b").stdout
    for settings, message in (
        (["--set", "date"], "'date' is not written as NAME=VALUE. Write --set date=VALUE"),
        (["--set", "date=1", "--set", "date=2"], "--set: 'date' is set twice"),
    ):
        result = invoke("validate", "--fields-only", file, *settings)
        assert result.exit_code == 2
        assert message in result.stderr


def test_validate_checks_schedules_and_their_templates(invoke: Invoke, write_job: WriteJob) -> None:
    result = invoke(
        "validate", "--fields-only", str(ROOT / "examples/append-schedule/schedule.yaml")
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert "new-documents is valid; next run: " in result.stdout
    wrong = write_job(schedule_document(schedule="61 * * * *"))
    result = invoke("validate", "--fields-only", wrong)
    assert result.exit_code == 2
    assert result.stderr.startswith("job.yaml: spec.schedule: ")
    template = {"spec": {**document()["spec"], "steps": [INVALID]}}
    result = invoke("validate", "--fields-only", write_job(schedule_document(template=template)))
    assert result.stderr == f"job.yaml: spec.template.{INVALID_MESSAGE}\n"
