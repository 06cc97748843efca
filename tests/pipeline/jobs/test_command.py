"""`batchinference run`: its exit codes, its output, and the files that it leaves.

One successful job runs as a process with its own Ray.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from batchinference.spec.report import REPORT_FILE, JobState, Report
from support.jobs.command import Command, wait_until
from support.jobs.on_ray import job_document, write_lines
from support.jobs.without_ray import invoke_without_ray
from support.outputs.rows import rows_of

SECRET = "the-secret-of-this-test-2718"
TEXTS = [f"text {n}" for n in range(45)]


def job_file(directory: Path, own_code: Path, **spec: Any) -> Path:
    """Write a job with relative paths, its input and its module. Return the file of the job."""
    write_lines(directory / "in", {"a.txt": TEXTS[:30], "b.txt": TEXTS[30:]})
    shutil.copy(own_code, directory / "own_code.py")
    file = directory / "job.yaml"
    file.write_text(yaml.safe_dump(job_document("demo", "in", "./out", **spec)))
    return file


def report_in(directory: Path) -> Report:
    return Report.parse((directory / REPORT_FILE).read_bytes())


@pytest.mark.xdist_group("command")
class TestSuccess:
    """One job with all options. It succeeds although one of its processes dies."""

    @pytest.fixture(scope="class")
    @classmethod
    def directory(cls, tmp_path_factory: pytest.TempPathFactory, own_code: Path) -> Path:
        directory = tmp_path_factory.mktemp("success")
        dies = {"callable": "own_code:die_once", "callArgs": {"file": str(directory / "died")}}
        length = {"callable": "own_code:length"}
        steps = [{"name": "dies", "python": dies}, {"name": "own", "python": length}]
        job_file(directory, own_code, steps=steps)
        return directory

    @pytest.fixture(scope="class")
    @classmethod
    def command(cls, directory: Path) -> Command:
        arguments = ["run", "job.yaml", "--sample", "3", "--report-directory", "reports/here"]
        return Command(arguments, directory, {"SOME_SECRET": SECRET})

    @pytest.fixture(scope="class")
    @classmethod
    def done(cls, command: Command) -> subprocess.CompletedProcess[str]:
        return command.run()

    def test_exit_code_is_0_and_stdout_is_empty(
        self, done: subprocess.CompletedProcess[str]
    ) -> None:
        assert (done.returncode, done.stdout) == (0, "")

    def test_output_path_is_relative_to_the_file(
        self, done: subprocess.CompletedProcess[str], directory: Path
    ) -> None:
        assert sorted(row["text"] for row in rows_of(directory / "out")) == sorted(TEXTS)
        assert (directory / "out" / "_SUCCESS").exists()

    def test_each_state_is_printed(self, done: subprocess.CompletedProcess[str]) -> None:
        lines = done.stderr.splitlines()
        said = [line for line in lines if line.startswith("demo: ")]
        assert said[:3] == [
            "demo: starting Ray on this machine",
            "demo: preparing",
            "demo: running, 0 rows, 0 %",
        ]
        assert said[-1].startswith("demo: finalizing, 45 rows, 100 %")

    def test_summary_is_printed(
        self, done: subprocess.CompletedProcess[str], directory: Path
    ) -> None:
        table = dict(
            line.split(None, 1)
            for line in done.stderr.splitlines()
            if line.split(None, 1)[:1] and line[0].islower() and ": " not in line
        )
        assert table["job"].strip() == "demo"
        assert table["result"].strip() == "succeeded"
        assert table["rows"].strip() == "45 read, 45 written"
        assert table["output"].strip() == str(directory / "out")

    def test_sample_of_the_output_is_printed(self, done: subprocess.CompletedProcess[str]) -> None:
        for number in range(3):
            assert f"row {number}:\n  text: text " in done.stderr
        assert "row 3:" not in done.stderr

    def test_report_is_written_to_its_directory(
        self, done: subprocess.CompletedProcess[str], directory: Path
    ) -> None:
        kept = report_in(directory / "reports" / "here")
        beside = (directory / "out" / "_batchinference" / "report.json").read_bytes()
        assert kept == Report.parse(beside)
        assert (kept.state, kept.retries) == (JobState.SUCCEEDED, 1)

    def test_no_secret_is_printed_or_stored(
        self, done: subprocess.CompletedProcess[str], directory: Path
    ) -> None:
        assert SECRET not in done.stderr
        files = [path for path in directory.rglob("*") if path.is_file()]
        assert not any(SECRET.encode() in file.read_bytes() for file in files)

    def test_no_process_is_left(
        self, done: subprocess.CompletedProcess[str], command: Command
    ) -> None:
        wait_until(lambda: not command.processes(), "the job's processes to end")

    def test_output_of_ray_is_not_printed(
        self, done: subprocess.CompletedProcess[str], directory: Path
    ) -> None:
        """Ray prints a long message about each process that dies."""
        assert (directory / "died").exists()
        for words in ("Dataset", "worker.py", "A worker died"):
            assert words not in done.stderr

    def test_complete_job_from_stdin_is_not_done_again(
        self,
        done: subprocess.CompletedProcess[str],
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The paths of a job from stdin are relative to the working directory."""
        before = report_in(directory / "reports" / "here")
        monkeypatch.chdir(directory)
        again = invoke_without_ray("run", "-", stdin=(directory / "job.yaml").read_text())
        assert again.exit_code == 0
        assert "the output was complete already" in again.stderr
        assert report_in(directory / "reports" / "here") == before


def test_preview_shows_the_first_rows_and_leaves_no_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    for name in "abc":
        Image.new("RGB", (197, 221)).save(tmp_path / "in" / f"{name}.png")
    read = {"format": "images", "options": {"include_paths": True}}
    write = {"format": "images", "column": "image", "path": "out"}
    job = job_document("pets", "in", "out", read=read)
    job["spec"]["write"] = write
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    monkeypatch.chdir(tmp_path)
    done = invoke_without_ray("run", "job.yaml", "--preview", "2")
    assert done.exit_code == 0
    shown = done.stderr.partition("row 0:")[2]
    assert shown.count("image: 221x197x3 uint8") == 2
    assert "output  none (--preview)" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "job.yaml"]
    for arguments, message in (
        (["--address", "auto"], "--preview runs on this machine only"),
        ([], "read.format sql has no limit"),
    ):
        job["spec"]["read"] = {"format": "sql", "query": "SELECT 1", "url": "sqlite://"}
        (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
        refused = invoke_without_ray("run", "job.yaml", "--preview", "2", *arguments)
        assert (refused.exit_code, message in refused.stderr) == (2, True)


def test_failed_job_ends_with_1_and_its_reason(
    tmp_path: Path, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]
    job_file(tmp_path, own_code, steps=steps, errors={"maxRows": 1})
    write_lines(tmp_path / "in", {"c.txt": ["bad one", "bad two"]})
    monkeypatch.chdir(tmp_path)
    done = invoke_without_ray("run", "job.yaml", "--sample", "3", "--report-directory", ".")
    assert done.exit_code == 1
    words = " ".join(done.stderr.split())
    assert "TooManyErrors: 2 row(s) failed, limit: errors.maxRows (1)" in words
    assert f"{tmp_path / 'out' / '_batchinference' / 'errors'}" in words
    assert "row 0:" not in done.stderr
    assert report_in(tmp_path).reason == "TooManyErrors"


def test_missing_input_ends_with_2(tmp_path: Path, own_code: Path) -> None:
    file = job_file(tmp_path, own_code)
    shutil.rmtree(tmp_path / "in")
    done = invoke_without_ray("run", str(file))
    assert done.exit_code == 2
    assert "BadInput: read.paths[0]" in " ".join(done.stderr.split())


NO_JOBS = {
    "no file": (None, "cannot be read"),
    "no YAML": ("{", "not valid YAML"),
    "another kind": (json.dumps({"apiVersion": "v1", "kind": "Pod"}), "no BatchInference here"),
    "a field too many": (json.dumps(job_document("job", "in", "out", colour="red")), "colour"),
    "two jobs": (
        "\n---\n".join(json.dumps(job_document(name, "in", "out")) for name in ("a", "b")),
        "found 2: a, b",
    ),
    "a column that is not there": (
        json.dumps(
            job_document("job", "in", "out", steps=[{"name": "f", "filter": "len(txt) > 2"}])
        ),
        "did you mean 'text'",
    ),
}


@pytest.mark.parametrize(("content", "words"), NO_JOBS.values(), ids=NO_JOBS)
def test_invalid_file_ends_with_2_before_ray_starts(
    tmp_path: Path, content: str | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "job.yaml").write_text(content)
    done = invoke_without_ray("run", str(tmp_path / "job.yaml"))
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert "Ray" not in done.stderr


@pytest.mark.long("remote")
def test_missing_cluster_ends_with_1_and_one_line(tmp_path: Path, own_code: Path) -> None:
    job_file(tmp_path, own_code)
    done = Command(["run", "job.yaml", "--address", "nowhere"], tmp_path).run()
    assert done.returncode == 1
    assert "demo: Ray could not start: ValueError: Invalid address format: nowhere" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
