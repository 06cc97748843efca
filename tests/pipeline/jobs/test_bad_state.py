"""Files of an output that are damaged, missing, of another job or of a later version.

They never lead to wrong rows. The next run either processes the affected rows again, or is refused
and changes nothing. The message then names the file and the fix."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from batchinference.pipeline.commit.snapshot import FORMAT
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.crash_points import Site, local_site
from support.jobs.without_ray import COUNTS, run_without_ray, small_job, write_input
from support.outputs.checks import OutputFaults

pytestmark = pytest.mark.xdist_group("crashes")
STATE = "_batchinference"


def later(content: bytes) -> bytes:
    """Return what a later version might write: all fields that are read now have other names."""
    fields = {f"new{key}": value for key, value in json.loads(content).items()}
    kept = {key: json.loads(content).get(key, 1) for key in OWNER}
    return json.dumps({**fields, **kept, "format": FORMAT + 1, "version": "9.9.9"}).encode()


OWNER = ("work", "attempt", "run", "begun", "job", "errors", "series")
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "rubbish": lambda content: b"\x93\xffrubbish{",
    "of another kind": lambda content: b"[]",
    "nested without end": lambda content: b"[" * 100_000,
    "a later version's": later,
}
OTHERS, GONE = "another job's", "gone"
COMMON_DAMAGES = ["truncated", "rubbish", "a later version's", OTHERS, GONE]
"""The damages of a whole job. The tests of each reader cover more (test_snapshots.py)."""

REFUSED = {
    "job.json": ("job.json' is damaged", "delete the files in this one"),
    "input.parquet": ("input.parquet' is missing, damaged or of another", "resume: false"),
    "attempts/*/unified.json": ("unified.json' is missing, damaged or of another", "resume: false"),
    "attempts/*/start.json": ("start.json' is missing, damaged or of another", "resume: false"),
}
"""Files without which the committed rows are unknown, with two parts of the message."""
PROCESSED_AGAIN = [
    *("spec.json", "attempts/*/0*.json", "attempts/*/closed"),
    *("errors/part-*", "../part-*"),
]
"""Files that are written again, or whose rows are processed again."""
OPTIONAL_FILES = [*PROCESSED_AGAIN[:3], "attempts/*/start.json", "report.json", "output.json",
                "input.parquet"]  # fmt: skip
"""Files that a complete output does not need in order to count as complete."""


class Outputs:
    """One output in three states, and the output of another job: unfinished, with all manifests;
    rewritten, with all files of one schema; and complete."""

    def __init__(self, directory: Path) -> None:
        self.site: Site = local_site(directory)
        self.job = self.site.job("out")
        self.output = directory / "out"
        steps = self.site.run(self.job).steps
        self.complete = self.output.rename(directory / "complete")
        closed = steps.index(f"write {STATE}/attempts/*/closed")
        self.site.run(self.job, kill=steps.index("write part-*.parquet", closed))
        self.unfinished = self.output.rename(directory / "unfinished")
        self.site.run(self.job, kill=steps.index(f"write {STATE}/output.json"))
        self.rewritten = self.output.rename(directory / "rewritten")
        self.other = directory / "other"
        self.site.run(small_job(write_input(directory / "other-input"), self.other))

    def put(self, state: Path, file: str, damage: str) -> None:
        """Restore the output in this state, and damage one of its files."""
        shutil.rmtree(self.output, ignore_errors=True)
        shutil.copytree(state, self.output)
        (files, *_) = sorted((self.output / STATE).glob(file))
        if damage == GONE:
            files.unlink()
        elif damage == OTHERS:
            (others, *_) = sorted((self.other / STATE).glob(file))
            files.write_bytes(others.read_bytes())
        else:
            files.write_bytes(DAMAGES[damage](files.read_bytes()))

    def files(self) -> dict[str, bytes]:
        seen = OutputFaults(self.output)
        return {name: (self.output / name).read_bytes() for name in seen.names()}

    def with_(self, path: str, value: Any) -> Document:
        """Return the job with one changed field in its spec."""
        job = deepcopy(self.job)
        *parents, last = path.split(".")
        fields = job["spec"]
        for name in parents:
            fields = fields[name]
        fields[last] = value
        return job

    def refusal(self, *texts: str) -> None:
        """Check that the job changes nothing and that its message contains these texts."""
        before = self.files()
        report = run_without_ray(self.job)
        assert (report.state, report.reason) == (JobState.FAILED, "BadOutput"), report.message
        for text in (*texts, str(self.output)):
            assert text in (report.message or "")
        assert self.files() == before

    def finished(self, job: Document, **times: float) -> Report:
        report = run_without_ray(job, **times)
        assert report.state == JobState.SUCCEEDED, f"{report.reason}: {report.message}"
        assert list(OutputFaults(self.output).at_the_end()) == []
        return report


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    return Outputs(tmp_path_factory.mktemp("outputs"))


def cases(files: list[str], damages: list[str]) -> pytest.MarkDecorator:
    pairs = [
        (file, damage)
        for file in files
        for damage in damages
        if damage != "a later version's" or file.endswith(".json")
    ]
    return pytest.mark.parametrize(
        ("file", "damage"), pairs, ids=[f"{file.split('/')[-1]} {damage}" for file, damage in pairs]
    )


def refused_until_started_over(outputs: Outputs, made: Path, file: str, damage: str) -> None:
    outputs.put(made, file, damage)
    named, way_out = REFUSED[file]
    outputs.refusal(*(["9.9.9", way_out] if "version" in damage else [named, way_out]))
    outputs.finished(outputs.with_("resume", False))


class TestUnfinished:
    @cases(["input.parquet", "attempts/*/start.json"], COMMON_DAMAGES)
    def test_unreadable_snapshot_is_refused_and_the_advice_works(
        self, outputs: Outputs, file: str, damage: str
    ) -> None:
        refused_until_started_over(outputs, outputs.unfinished, file, damage)

    @cases(["attempts/*/unified.json"], COMMON_DAMAGES[:-1])
    def test_unreadable_snapshot_of_rewritten_files_is_refused(
        self, outputs: Outputs, file: str, damage: str
    ) -> None:
        refused_until_started_over(outputs, outputs.rewritten, file, damage)

    def test_rows_of_rewritten_files_without_snapshot_are_processed_again(
        self, outputs: Outputs
    ) -> None:
        outputs.put(outputs.rewritten, "attempts/*/unified.json", GONE)
        outputs.finished(outputs.job)

    @cases(["code.json"], [*DAMAGES])
    def test_unreadable_code_hashes_are_refused_until_they_are_removed(
        self, outputs: Outputs, file: str, damage: str
    ) -> None:
        outputs.put(outputs.unfinished, file, damage)
        outputs.refusal("code.json' is damaged", "Remove the file")
        (outputs.output / STATE / file).unlink()
        assert run_without_ray(outputs.job).state == JobState.SUCCEEDED

    @cases(["job.json"], ["truncated", "emptied", "rubbish", "of another kind"])
    def test_unreadable_ownership_is_refused(
        self, outputs: Outputs, file: str, damage: str
    ) -> None:
        outputs.put(outputs.unfinished, file, damage)
        outputs.refusal(*REFUSED[file])

    def test_state_of_another_job_is_refused(self, outputs: Outputs) -> None:
        outputs.put(outputs.unfinished, "job.json", OTHERS)
        outputs.refusal("begun with another spec", "Run `batchinference run FILE --restart`")

    def test_output_without_job_is_refused(self, outputs: Outputs) -> None:
        outputs.put(outputs.unfinished, "job.json", GONE)
        outputs.refusal("no BatchInference has written", "Choose another path, empty it")

    @cases(PROCESSED_AGAIN, ["nested without end", *COMMON_DAMAGES])
    def test_rows_of_unreadable_manifests_are_processed_again(
        self, outputs: Outputs, file: str, damage: str
    ) -> None:
        outputs.put(outputs.unfinished, file, damage)
        outputs.finished(outputs.job)

    def test_owner_of_a_later_version_is_respected(self, outputs: Outputs) -> None:
        outputs.put(outputs.unfinished, "job.json", "a later version's")
        outputs.finished(outputs.job, lease_timeout=0.2)  # its process is unknown


class TestComplete:
    @cases(OPTIONAL_FILES, ["truncated", "a later version's", OTHERS, GONE])
    def test_complete_output_is_kept_and_counted(
        self, outputs: Outputs, file: str, damage: str, messages: Messages
    ) -> None:
        outputs.put(outputs.complete, file, damage)
        before = outputs.files()
        report = run_without_ray(outputs.job)
        assert report.state == JobState.SUCCEEDED, report.message
        messages.check(report.message or "")
        assert report.counts is not None
        assert report.counts.model_dump(exclude_none=True) == COUNTS | {"warned": 0}
        assert (report.name, report.output) == ("small", str(outputs.output))
        assert outputs.files() == before

    def test_changed_input_is_not_detected_without_state(self, outputs: Outputs) -> None:
        outputs.put(outputs.complete, "input.parquet", "truncated")
        assert "input.parquet is damaged" in (run_without_ray(outputs.job).message or "")

    def test_unreadable_counts_are_refused_and_the_advice_works(self, outputs: Outputs) -> None:
        outputs.put(outputs.complete, "report.json", GONE)
        (outputs.output / STATE / "output.json").write_bytes(b"{}")
        outputs.refusal("output.json' is missing, damaged or", "with write.mode: overwrite")
        outputs.finished(outputs.with_("write.mode", "overwrite"))

    def test_success_mark_is_restored_without_reading_rows(self, outputs: Outputs) -> None:
        outputs.put(outputs.complete, "../_SUCCESS", GONE)
        assert outputs.finished(outputs.job).pass_number == 2
        assert OutputFaults(outputs.output).rows_processed_again() == 0
