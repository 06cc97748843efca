"""`batchinference submit`: the objects that it creates on the cluster."""

from __future__ import annotations

import pytest

from batchinference.cli import submit_and_control
from plugins.messages import Messages
from support.documents.minimal import Document, document, schedule_document
from support.program import Invoke, WriteJob


class RecordingKubernetes:
    """A cluster that stores the applied documents."""

    host = "https://cluster"

    def __init__(self) -> None:
        self.applied: list[Document] = []

    def apply(self, document: Document) -> Document:
        self.applied.append(document)
        metadata = {"namespace": "team", "generation": 1, **document["metadata"]}
        return {**document, "metadata": metadata}


@pytest.fixture
def kubernetes(monkeypatch: pytest.MonkeyPatch) -> RecordingKubernetes:
    made = RecordingKubernetes()
    monkeypatch.setattr(submit_and_control, "Kubernetes", lambda *_: made)
    return made


def test_each_value_of_a_parameter_can_have_its_own_job(
    invoke: Invoke, write_job: WriteJob, kubernetes: RecordingKubernetes
) -> None:
    write = {"format": "parquet", "path": "s3://out/{{ params.day }}"}
    job = document("daily", parameters=[{"name": "day"}], write=write)
    job["metadata"]["labels"] = {"team": "vision"}
    file = write_job({"kind": "Secret", "metadata": {"name": "s3"}}, job)
    for day in ("monday", "tuesday"):
        done = invoke("submit", file, "--set", f"day={day}", "--name", f"daily-{day}")
        assert (done.exit_code, done.stderr) == (0, "")
    assert [(each["metadata"], each["spec"]["write"]["path"]) for each in kubernetes.applied] == [
        ({"name": "daily-monday", "labels": {"team": "vision"}}, "s3://out/monday"),
        ({"name": "daily-tuesday", "labels": {"team": "vision"}}, "s3://out/tuesday"),
    ]


def test_name_needs_a_file_with_one_job(
    invoke: Invoke, write_job: WriteJob, kubernetes: RecordingKubernetes, messages: Messages
) -> None:
    for documents in ((document(), schedule_document()), (schedule_document(),)):
        done = invoke("submit", write_job(*documents), "--name", "other")
        assert (done.exit_code, done.stdout, kubernetes.applied) == (2, "", [])
        messages.check(done.stderr)


def test_wrong_name_is_a_problem_of_the_file(
    invoke: Invoke, write_job: WriteJob, kubernetes: RecordingKubernetes
) -> None:
    done = invoke("submit", write_job(document()), "--name", "Not_A_Name")
    assert (done.exit_code, kubernetes.applied) == (2, [])
    assert done.stderr.startswith("job.yaml: metadata.name: ")
