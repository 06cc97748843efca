"""Jobs whose input or output is on S3, with a real server."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.commit.replacement import swap_in_replacement
from batchinference.pipeline.errors import BadInput, BadOutput
from batchinference.pipeline.input import RowCount
from batchinference.pipeline.input.file_input import open_files
from batchinference.pipeline.input.listing import list_input
from batchinference.pipeline.output.writers.json import JsonWriter
from batchinference.pipeline.row_batch import merged
from batchinference.pipeline.storage.retry import RetryPolicy
from batchinference.spec import parse
from batchinference.spec.read import ReadParquet, ReadText
from batchinference.spec.report import JobState, Report
from plugins.messages import Messages
from support.documents.minimal import Document
from support.jobs.on_ray import job_document, run_job, write_lines
from support.jobs.without_ray import invoke_without_ray
from support.outputs.batches import end, failed, good
from support.outputs.builders import begin_job, committing, succeeded_report
from support.outputs.rows import Row
from support.servers.byte_counting_proxy import counted
from support.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

TEXTS = {"a.txt": ["one", "two", "bad row"], "deep/b.txt": ["three"], "c.txt": []}
GOOD = ["one", "three", "two"]
STEPS = [{"name": "own", "python": {"callable": "own_code:refuse_bad"}}]


@pytest.fixture
def bucket(bucket: str, s3: S3Server) -> str:
    """Return the name of a bucket with texts below in/."""
    lines = {key: "".join(f"{text}\n" for text in texts) for key, texts in TEXTS.items()}
    s3.put(bucket, {f"in/{key}": text.encode() for key, text in lines.items()})
    return bucket


class TestJobs:
    """Whole jobs, without Ray."""

    def run(self, job: Document, directory: Path) -> str:
        """Run a job to its end, and return what it prints to stderr."""
        (directory / "job.yaml").write_text(yaml.safe_dump(job))
        done = invoke_without_ray("run", str(directory / "job.yaml"), "--sample", "1")
        assert done.exit_code == 0, done.stderr
        return done.stderr

    @pytest.mark.usefixtures("own_code")
    def test_job_copies_rows_from_s3_to_s3(
        self, s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # only the job names the server, as if input and output were on different servers
        storage = {"endpoint": s3.endpoint, "region": "us-east-1"}
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        monkeypatch.setenv("AWS_REGION", "nowhere-1")
        job = job_document(
            "s3",
            f"s3://{bucket}/in/",
            f"s3://{bucket}/out/",
            read={"options": {"includePaths": True}, "storage": storage},
            write={"format": "parquet", "storage": storage},
            steps=STEPS,
            errors={"maxRows": 1},
        )
        printed = self.run(job, tmp_path)
        objects = s3.objects(bucket, "out/")
        written = sorted(parquet_rows(objects, "out/part-"), key=lambda row: row["text"])
        assert written == [
            {"text": "one", "path": f"s3://{bucket}/in/a.txt"},
            {"text": "three", "path": f"s3://{bucket}/in/deep/b.txt"},
            {"text": "two", "path": f"s3://{bucket}/in/a.txt"},
        ]
        (error,) = parquet_rows(objects, "out/_batchinference/errors/part-")
        assert (error["row"], error["path"]) == (2, f"s3://{bucket}/in/a.txt")
        run = json.loads(objects["out/_batchinference/job.json"])["run"]
        assert objects["out/_SUCCESS"].decode() == run

        report = Report.parse(objects["out/_batchinference/report.json"])
        assert (report.state, report.output) == (JobState.SUCCEEDED, f"s3://{bucket}/out/")
        no_keys(printed, *(str(content) for content in objects.values()))

    @pytest.mark.usefixtures("own_code")
    def test_job_copies_rows_from_disk_to_s3(
        self, s3: S3Server, bucket: str, tmp_path: Path
    ) -> None:
        write_lines(tmp_path / "in", {"a.txt": GOOD})
        job = job_document("up", "in", f"s3://{bucket}/result", steps=STEPS)
        assert "text: one" in self.run(job, tmp_path)
        objects = s3.objects(bucket, "result/")
        assert sorted(row["text"] for row in json_rows(objects, "result/part-")) == GOOD
        assert "result/_SUCCESS" in objects


def parquet_rows(objects: dict[str, bytes], prefix: str) -> list[Row]:
    contents = [content for key, content in objects.items() if key.startswith(prefix)]
    return [row for content in contents for row in pq.read_table(io.BytesIO(content)).to_pylist()]


def json_rows(objects: dict[str, bytes], prefix: str) -> list[Row]:
    contents = [content for key, content in objects.items() if key.startswith(prefix)]
    return [json.loads(line) for content in contents for line in content.splitlines()]


def no_keys(*texts: str) -> None:
    for text in texts:
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


def test_statistics_of_a_file_take_one_request(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = io.BytesIO()
    pq.write_table(pa.table({"n": range(9)}), content, row_group_size=3)
    s3.put(bucket, {f"tables/{number}.parquet": content.getvalue() for number in range(10)})
    read = ReadParquet(format="parquet", paths=[f"s3://{bucket}/tables/"])
    with counted(s3.endpoint) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.endpoint)
        given = open_files(read)
        assert given.count() == RowCount(90, estimated=False)
        assert len(given.read_tasks(30)) == 30
        of_files = [request for request in relay.requests if ".parquet" in request]
    paths = [f"GET /{bucket}/tables/{number}.parquet" for number in range(10)]
    assert sorted(of_files) == paths


KEYS = (
    *("a b", "h#x", "p%20q", "plus+x", "w?x", "br[1]", "st*ar", "café", "cafe\u0301", "co:lon"),
    *("back\\slash", "cu{r}ly", "ti~de", "%3A", "a&b", "q'q", 'd"q', "com,ma", "se;mi", "<x>"),
    *("@at", "$d", "=eq", r"caf\xe9", "line\nbreak"),
)
"""Names that a store decodes, that a pattern matches, or that must not be in a URL."""


class TestKeys:
    """Each object is read once, whatever its key is."""

    @pytest.fixture(autouse=True)
    def objects(self, s3: S3Server, bucket: str) -> None:
        for name in KEYS:
            s3.put(bucket, {f"keys/{name}.txt": b"file\n", f"keys/{name}/x.txt": b"in\n"})

    def read(self, path: str) -> list[str]:
        """Return the keys of the rows that a path selects."""
        given = open_files(ReadText.model_validate({
            "format": "text", "paths": [path], "options": {"includePaths": True}
        }))  # fmt: skip
        batches = (batch for task in given.read_tasks(4) for batch in task())
        rows = [row for batch in batches for row in batch.table.to_pylist()]
        return sorted(row["path"].split("/keys/")[1] for row in rows)

    def test_all_objects_of_a_directory_are_read_once(self, bucket: str) -> None:
        files, inside = [f"{name}.txt" for name in KEYS], [f"{name}/x.txt" for name in KEYS]
        for path in ("", "**", "*"):
            assert self.read(f"s3://{bucket}/keys/{path}") == sorted([*files, *inside]), path
        assert self.read(f"s3://{bucket}/keys/*.txt") == sorted(files)
        assert self.read(f"s3://{bucket}/keys/*/*.txt") == sorted(inside)

    @pytest.mark.parametrize("name", KEYS[:-1])
    def test_key_is_the_path_of_a_file_or_directory(self, bucket: str, name: str) -> None:
        base = f"s3://{bucket}/keys/{name}"
        assert self.read(f"{base}.txt") == [f"{name}.txt"]
        for path in (base, f"{base}/", f"{base}/x.txt", f"{base}/*.txt", f"{base}/**"):
            assert self.read(path) == [f"{name}/x.txt"], path


def test_files_that_are_ignored_are_not_requested(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), content)
    names = ["a.parquet", *(f"{number}.txt" for number in range(20)), "_SUCCESS", "_x/b.parquet"]
    s3.put(bucket, {f"mixed/{name}": content.getvalue() for name in (*names, "000000_0")})
    with counted(s3.endpoint) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.endpoint)
        frozen = list_input(ReadParquet(format="parquet", paths=[f"s3://{bucket}/mixed/"]))
        requested = {request for request in relay.requests if "/mixed/" in request}
    assert len(frozen) == 2
    assert frozen.ignored.text == "21 files ignored: .txt 20, .parquet 1 (hidden)"
    assert requested <= {f"{verb} /{bucket}/mixed/000000_0" for verb in ("HEAD", "GET")}


def test_table_on_s3_is_refused_from_the_listing(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, messages: Messages
) -> None:
    names = ["_delta_log/0.json", *(f"day={number}/a.parquet" for number in range(20))]
    s3.put(bucket, {f"tables/t/{name}": b"x" for name in names})
    with counted(s3.endpoint) as relay:
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.endpoint)
        for path in ("tables/", "tables/t", "tables/t/day=1", "tables/t/*/a.parquet"):
            with messages.raises(BadInput):
                list_input(ReadParquet(format="parquet", paths=[f"s3://{bucket}/{path}"]))
        paths = [request.partition("?")[0] for request in relay.requests]
    assert not [path for path in paths if path.endswith("/a.parquet") and "%2A" not in path]


def test_prefix_without_objects_may_be_empty(bucket: str) -> None:
    for path in ("none/", "none/*.txt", "in/*.csv"):
        read = {"format": "text", "paths": [f"s3://{bucket}/{path}"], "allowEmpty": True}
        assert len(list_input(ReadText.model_validate(read))) == 0


class TestOutputStates:
    """The same rules as on a disk, although a prefix is not a directory."""

    def job(self, bucket: str, **fields: Any) -> Document:
        return job_document("s3", f"s3://{bucket}/in", f"s3://{bucket}/out", **fields)

    def a_whole_run(self, job: Document) -> None:
        """Write the output of a job with one good row and one failed row."""
        prepared = begin_job(job)
        ends = [end(number, 1 - number // 2) for number in range(3)]
        batch = merged([good(0, 0, pa.table({"text": ["one"]})), failed(1, 0), *ends])
        committing(prepared.job_pass, JsonWriter("none")).put(batch, task=0)
        left = prepared.close()
        assert left.missing == {}
        prepared.job_pass.remove_orphans(left.snapshot.entries)
        prepared.job_pass.mark_complete(
            left.snapshot, succeeded_report(prepared.job_pass.layout.output.uri)
        )

    def test_other_work_is_refused_without_overwrite(self, s3: S3Server, bucket: str) -> None:
        self.a_whole_run(self.job(bucket))
        before = s3.objects(bucket)
        other = self.job(bucket, steps=[{"name": "f", "filter": "text == 'one'"}])
        with pytest.raises(BadOutput, match="begun with another spec"):
            self.a_whole_run(other)
        assert s3.objects(bucket) == before

        other["spec"]["write"]["mode"] = "overwrite"
        self.a_whole_run(other)
        staged = "out/_batchinference/replacement/"
        kept = {key: s3.objects(bucket)[key] for key in before}
        assert kept == before
        assert f"{staged}_SUCCESS" in s3.objects(bucket)
        swap_in_replacement(Layout.of(parse(other).spec))
        parts = {key for key in before if "/part-" in key}
        objects = s3.objects(bucket, "out/")
        assert [key for key in objects if key in parts or key.startswith(staged)] == []
        assert [row["text"] for row in json_rows(objects, "out/part-")] == ["one"]
        assert len([key for key in objects if "/errors/part-" in key]) == 1
        assert "out/_SUCCESS" in objects

    def test_foreign_objects_are_refused_and_kept(
        self, s3: S3Server, bucket: str, messages: Messages
    ) -> None:
        s3.put(bucket, {"out/deep/table": b"theirs", "out-2/part": b"a neighbour"})
        for mode in ("error", "overwrite"):
            with messages.raises(BadOutput):
                self.a_whole_run(self.job(bucket, write={"mode": mode}))
        assert s3.objects(bucket, "out") == {
            "out/deep/table": b"theirs",
            "out-2/part": b"a neighbour",
        }


class TestErrors:
    """Messages name the location that cannot be used, and never contain a key."""

    def message(self, reason: str, source: str, output: str) -> str:
        run = run_job(job_document("trouble", source, output))
        assert (run.report.state, run.report.reason) == (JobState.FAILED, reason), (
            run.report.message
        )
        message = run.report.message or ""
        no_keys(message, run.report.serialized().decode())
        return message

    @pytest.fixture
    def local(self, tmp_path: Path) -> str:
        return str(write_lines(tmp_path / "in", {"a.txt": ["text"]}))

    @pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"])
    def test_wrong_credentials_are_reported(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, local: str, tmp_path: Path, name: str
    ) -> None:
        wrong = "not-the-right-one-1618"
        monkeypatch.setenv(name, wrong)
        message = self.message("BadInput", f"s3://{bucket}/in", str(tmp_path / "out"))
        assert f"spec.read.paths[0]: 's3://{bucket}/in' cannot be listed: " in message
        assert not (tmp_path / "out").exists()
        of_output = self.message("BadOutput", local, f"s3://{bucket}/out")
        assert f"spec.write.path: 's3://{bucket}/out' cannot be used: " in of_output
        assert wrong not in message + of_output

    def test_missing_bucket_or_prefix_is_reported(
        self, bucket: str, local: str, tmp_path: Path, messages: Messages
    ) -> None:
        for source in ("s3://no-such-bucket/in", f"s3://{bucket}/nothing/here"):
            message = self.message("BadInput", source, str(tmp_path / "out"))
            assert message == f"spec.read.paths[0]: '{source}' does not exist. Correct the path"
        message = self.message("BadOutput", local, "s3://no-such-bucket/out")
        messages.check(message)

    def test_unresponsive_server_is_reported(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, local: str, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(RetryPolicy, "call", lambda _, call: call())  # no retry
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        message = self.message("StorageUnavailable", "s3://bucket/in", str(tmp_path / "out"))
        assert "'s3://bucket/in' cannot be listed" in message
        message = self.message("StorageUnavailable", local, "s3://bucket/out")
        assert "'s3://bucket/out' cannot be used" in message

    def test_model_in_a_missing_bucket_is_reported(
        self, bucket: str, local: str, tmp_path: Path
    ) -> None:
        model = {
            "runtime": "torch",
            "source": "s3://no-such-bucket/model.pt",
            "trustSource": True,
            "inputs": {"x": "text"},
            "output": "y",
        }
        job = job_document("m", local, tmp_path / "out", steps=[{"name": "m", "model": model}])
        run = run_job(job)
        assert run.report.reason == "ModelLoad"
        assert "'s3://no-such-bucket/model.pt' not found" in (run.report.message or "")
