"""`batchinference validate`: what is wrong with files, without running anything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from support.documents.minimal import document, model_step
from support.documents.parsed import filter_step

Invoke = Callable[..., Result]
WriteJob = Callable[..., str]
WRONG = filter_step(expression="txt == 'a'")
WRONG_LINE = (
    "spec.steps[0]: step 'keep' reads column 'txt', but the columns here are text; "
    "did you mean 'text'?"
)


def test_a_valid_file_is_said_to_be_so(invoke: Invoke, write_job: WriteJob) -> None:
    result = invoke("validate", write_job(document("mine")))
    assert (result.exit_code, result.stdout, result.stderr) == (
        0,
        "job.yaml: mine is valid\n",
        "",
    )


def test_all_files_are_validated(invoke: Invoke, write_job: WriteJob) -> None:
    files = [
        write_job(document("a"), file="a.yaml"),
        write_job(document("b", steps=[WRONG]), file="b.yaml"),
        write_job(document("c"), file="c.yaml"),
    ]
    result = invoke("validate", *files)
    assert result.exit_code == 2
    assert result.stdout.splitlines() == ["a.yaml: a is valid", "c.yaml: c is valid"]
    assert result.stderr.splitlines() == [f"b.yaml: {WRONG_LINE}"]


def test_each_problem_has_a_line(invoke: Invoke, write_job: WriteJob) -> None:
    wrong = document(
        "Bad_Name", read={"format": "text"}, write={"format": "orc", "path": "s3://out/"}
    )
    wrong["spec"]["stpes"] = []
    result = invoke("validate", write_job(wrong))
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["job.yaml", "metadata.name"],
        ["job.yaml", "spec.read.paths"],
        ["job.yaml", "spec.write.format"],
        ["job.yaml", "spec.stpes"],
    ]
    assert all(len(line.split(": ", 2)[2]) > 10 for line in lines)


def test_deadlocked_job_is_refused(invoke: Invoke, write_job: WriteJob) -> None:
    crowd = model_step(replicas={"min": 8, "max": 8})
    file = write_job(document(steps=[crowd], cluster={"workers": {"cpu": 2, "max": 1}}))
    result = invoke("validate", file)
    assert result.exit_code == 2
    assert "job.yaml: spec.cluster.workers.max: this job would wait for ever" in result.stderr


def test_all_jobs_of_a_file_are_validated(invoke: Invoke, write_job: WriteJob) -> None:
    """Also after one that is wrong, whether its form or its plan is."""
    jobs = [
        document("a", steps=[WRONG]),
        document("b", write={}),
        document("c"),
        document("d", steps=[WRONG]),
    ]
    result = invoke("validate", write_job(*jobs))
    assert result.exit_code == 2
    assert result.stdout == "job.yaml (BatchInference 3): c is valid\n"
    assert result.stderr.splitlines() == [
        f"job.yaml (BatchInference 1): {WRONG_LINE}",
        "job.yaml (BatchInference 2): spec.write.format: required, but missing",
        f"job.yaml (BatchInference 4): {WRONG_LINE}",
    ]


def test_other_objects_of_a_file_are_ignored(invoke: Invoke, write_job: WriteJob) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3"}}
    result = invoke("validate", write_job(secret, document("mine")))
    assert (result.exit_code, result.stdout) == (0, "job.yaml: mine is valid\n")


def test_stdin_is_read_for_a_dash(invoke: Invoke) -> None:
    result = invoke("validate", "-", stdin=yaml.safe_dump(document("piped")))
    assert (result.exit_code, result.stdout) == (0, "-: piped is valid\n")
    result = invoke("validate", "-", stdin=yaml.safe_dump(document(steps=[WRONG])))
    assert (result.exit_code, result.stderr) == (2, f"-: {WRONG_LINE}\n")


def test_local_paths_are_fine_here(invoke: Invoke, write_job: WriteJob) -> None:
    file = write_job(document(write={"format": "parquet", "path": "./out"}))
    assert invoke("validate", file).exit_code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", "no BatchInference here, only an empty document", id="empty"),
        pytest.param("a: [", "not valid YAML: line 1", id="broken"),
        pytest.param("kind: Secret", "no BatchInference here, only Secret", id="another kind"),
        pytest.param("- a", "expected 'apiVersion: batchinference.dev/v1alpha1'", id="a list"),
        pytest.param("a: 1\na: 2", "the key 'a' is given twice", id="a key twice"),
    ],
)
def test_a_file_that_holds_no_job(
    invoke: Invoke, directory: Path, content: str, message: str
) -> None:
    (directory / "f.yaml").write_text(content)
    result = invoke("validate", "f.yaml")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("f.yaml: ")
    assert message in result.stderr


@pytest.mark.parametrize("file", ["missing.yaml", "folder", "binary"])
def test_unreadable_file_does_not_stop_validation(
    invoke: Invoke, write_job: WriteJob, directory: Path, file: str
) -> None:
    (directory / "folder").mkdir()
    (directory / "binary").write_bytes(b"\x7fELF\xff\xfe\x00")
    result = invoke("validate", file, write_job(document("mine")))
    assert (result.exit_code, result.stdout) == (2, "job.yaml: mine is valid\n")
    assert result.stderr.startswith(f"{file}: cannot be read: ")
    assert len(result.stderr.splitlines()) == 1


def test_control_characters_are_refused(invoke: Invoke, directory: Path) -> None:
    (directory / "nul.yaml").write_bytes(b"kind: \x00\n")
    result = invoke("validate", "nul.yaml")
    assert result.exit_code == 2
    assert result.stderr.startswith("nul.yaml: not valid YAML: ")


def test_a_file_is_needed(invoke: Invoke) -> None:
    result = invoke("validate")
    assert result.exit_code == 2
    assert "FILE" in result.stderr
