"""Correct outputs are proven: all input and output formats, finished, appended or unfinished. No
endpoint of an untrusted output is reached, and the memory does not grow with the rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchinference.pipeline.commit.lease import Lease, read_lease
from batchinference.pipeline.input import listing
from batchinference.pipeline.input.readers.kinds import reader_for
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.storage.url_fetcher import Fetcher
from batchinference.pipeline.verify import row_check, table_check
from batchinference.pipeline.verify.file_check import csv_records
from batchinference.spec import parse
from plugins.messages import Messages
from support.calls import counted
from support.documents.minimal import Document
from support.inputs.formats import CASES
from support.jobs.on_ray import job_document, write_lines
from support.outputs.builders import every_tenth, make_output
from support.outputs.tables import write_fields
from support.outputs.verify_command import invoke, verified
from support.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

FILES, LINES = 4, 50
WRITES: dict[str, Document] = {
    "parquet": {"format": "parquet"},
    "json": {"format": "json"},
    "json, packed": {"format": "json", "compression": "gzip"},
    "csv": {"format": "csv"},
    "csv, packed": {"format": "csv", "compression": "gzip"},
    "webdataset": {"format": "webdataset"},
    "several files a commit": {"format": "json", "rowsPerFile": 7},
    "partitions": {"format": "parquet", "columns": ["text"], "partitionBy": ["path"]},
}
TABLES = ("delta", "lance", "iceberg", "sql")
TOLERANT = {"maxRows": 10**6}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Write lines with all characters that could confuse a line format, except a line end."""
    lines = {f"{n}.txt": [f'{m},"" of\u2028{n}\r' for m in range(LINES)] for n in range(FILES)}
    return write_lines(tmp_path / "in", lines)


def job(source: Path, output: Path, **spec: Any) -> Document:
    read = {"options": {"includePaths": True}, **spec.pop("read", {})}
    return job_document("job", source, output, read=read, errors=TOLERANT, **spec)


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_output_of_every_format_is_proven(texts: Path, tmp_path: Path, write: Document) -> None:
    make_output(job(texts, tmp_path / "out", write=write), every_tenth)
    for options in ([], ["--quick"]):
        done = verified(tmp_path / "out", *options)
        assert (done.exit_code, done.result, done.counts) == (0, "proven", {})
        rows = FILES * LINES
        made = done.job["committed"]
        assert (done.job["rows"], done.job["accountedRows"]) == (rows, rows)
        assert (made["written"], made["failed"], made["filtered"]) == (160, 20, 20)


def test_values_of_several_lines_are_one_row_of_csv(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"text": f'{n}\n"\n\r\n'}) for n in range(9)]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(rows))
    read, write = {"format": "json"}, {"format": "csv"}
    make_output(job_document("csv", tmp_path / "in", tmp_path / "out", read=read, write=write))
    assert verified(tmp_path / "out").result == "proven"
    files = (tmp_path / "out").glob("*.csv")
    assert sum(csv_records(file.open("rb"), chunk_bytes=7) for file in files) == len(rows)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_rows_of_each_input_format_are_counted(case: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    rows = case.write(tmp_path / "in")
    read = {"format": case.format, "options": case.options}
    write = {"format": "parquet"}
    make_output(job_document("input", tmp_path / "in", tmp_path / "out", read=read, write=write))
    done = verified(tmp_path / "out")
    assert (done.exit_code, done.counts, done.job["rows"]) == (0, {}, len(rows))
    assert done.job["inputFilesCounted"] == done.job["inputFiles"]


@pytest.mark.parametrize("options", [[], ["--quick"]])
@pytest.mark.parametrize("kept", [0.9, 0.5, 0.001])
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_damaged_input_has_the_rows_that_the_job_reads(
    tmp_path: Path, name: str, kept: float, options: list[str]
) -> None:
    """Its header announces more rows, but the damaged rest counts as one failed row."""
    (tmp_path / "in").mkdir()
    numbers = np.arange(50_000)
    np.save(tmp_path / "in" / "b.npy", numbers[:10])
    file = tmp_path / "in" / name
    np.save(file, numbers) if name == "a.npy" else np.savez(file, data=numbers)
    file.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept)])
    read, write = {"format": "numpy"}, {"format": "parquet"}
    given = job_document("cut", tmp_path / "in", tmp_path / "out", read=read, write=write)
    make_output(given | {"spec": given["spec"] | {"errors": TOLERANT}})
    done = verified(tmp_path / "out", *options)
    assert (done.exit_code, done.counts) == (0, {})
    assert done.job["rows"] == done.job["accountedRows"] < 50_000


@pytest.mark.parametrize("format_", ["text", "parquet"])
def test_limited_input_counts_up_to_its_limit(format_: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    case = CASES[format_]
    rows = case.write(tmp_path / "in")
    read = {"format": format_, "options": {"limit": len(rows) - 1}}
    make_output(job_document("limit", tmp_path / "in", tmp_path / "out", read=read))
    done = verified(tmp_path / "out")
    assert (done.exit_code, done.counts, done.job["rows"]) == (0, {}, len(rows) - 1)


@pytest.mark.parametrize("format_", TABLES)
def test_commits_of_a_table_are_proven(
    texts: Path, tmp_path: Path, format_: str, messages: Messages
) -> None:
    write = write_fields(format_, tmp_path)
    layout = make_output(job(texts, tmp_path / "out", write=write), every_tenth)
    done = verified(tmp_path / "out", "--trust-output")
    assert (done.exit_code, done.counts, done.job["accountedRows"]) == (0, {}, FILES * LINES)
    messages.check(done.job["unproven"])
    Lease.new(layout, 1).write_if_unchanged(layout, read_lease(layout))
    done = verified(tmp_path / "out", "--trust-output")
    assert (done.exit_code, done.counts) == (1, {"noCommit": 1})


@pytest.mark.parametrize("name", ["iceberg", "sql"])
def test_catalog_of_an_untrusted_output_is_not_reached(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write = write_fields(name, tmp_path)
    make_output(job(texts, tmp_path / "out", write=write), every_tenth)
    monkeypatch.setattr(table_check, "table_for", pytest.fail)
    done = verified(tmp_path / "out")
    assert (done.exit_code, done.counts) == (0, {})
    assert any("only the output says where its catalog" in e for e in done.job["unproven"])


def test_addresses_of_a_manifest_are_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x").write_text("a")
    (tmp_path / "in" / "a.csv").write_text("uri\nx\nx\n")
    monkeypatch.setattr(Fetcher, "fetch", pytest.fail)
    fields = {"format": "manifest", "options": {"decode": "text"}}
    read = parse(job_document("list", tmp_path / "in", tmp_path / "out", read=fields)).spec.read
    frozen = listing.snapshot_input([str(tmp_path / "in")], ["csv"])
    claimed = {0: 99}
    counted = row_check._counted(
        frozen, read, reader_for(read), list(frozen.files()), claimed, quick=False
    )
    assert dict(counted) == {0: 2}


def test_each_job_of_an_output_is_verified(texts: Path, tmp_path: Path) -> None:
    make_output(job(texts, tmp_path / "out"), every_tenth)
    more = write_lines(tmp_path / "more", {"a.txt": ["one", "two"], "b.txt": ["three"]})
    for complete, result, code in ((False, "unfinished", 3), (True, "proven", 0)):
        make_output(
            job(more, tmp_path / "out", write={"mode": "append"}), complete=complete, tasks=2
        )
        with counted(Location, "visible_files") as lists:
            done = verified(tmp_path / "out")
        assert (done.exit_code, done.counts) == (code, {})
        listed = [call.args[0].uri for call in lists.call_args_list]
        assert listed.count(str(tmp_path / "out")) == 2, "not once for each job"
        assert [one["result"] for one in done.proof["jobs"]] == ["proven", result]
    assert [one["rows"] for one in done.proof["jobs"]] == [200, 3]
    assert invoke(tmp_path / "out").stdout.splitlines()[-1].split()[1] == "proven:"
    make_output(job_document("other", more, tmp_path / "out", write={"mode": "append"}))
    with counted(listing, "snapshot_input") as lists:
        assert len(verified(tmp_path / "out").proof["jobs"]) == 3
    assert lists.call_count == 2, "not once for each input"


def test_file_that_is_listed_twice_is_verified_twice(texts: Path, tmp_path: Path) -> None:
    listed = job(texts, tmp_path / "out")
    listed["spec"]["read"]["paths"] = [str(texts / name) for name in ("0.txt", "1.txt", "0.txt")]
    make_output(listed)
    done = verified(tmp_path / "out")
    assert (done.exit_code, done.counts, done.job["rows"]) == (0, {}, 150)
    (texts / "1.txt").write_text("changed")
    done = verified(tmp_path / "out")
    assert done.where("inputChanged") == [{"file": str(texts / "1.txt")}]
    assert "missing" not in done.counts


def test_unfinished_output_is_reported_with_missing_rows(texts: Path, tmp_path: Path) -> None:
    make_output(job(texts, tmp_path / "out"), every_tenth, complete=False)
    done = verified(tmp_path / "out")
    assert (done.exit_code, done.result, done.counts) == (3, "unfinished", {})
    assert (done.job["accountedRows"], done.job["rows"]) == (150, 200)
    assert done.job["committed"] | {"bytes": 0} == {
        **{"written": 120, "failed": 15, "filtered": 15},
        **{"dataFiles": 2, "errorFiles": 2, "bytes": 0},
    }
    assert done.job["missing"] == [{"file": str(texts / "3.txt"), "first": 0, "last": 49}]
    shown = invoke(tmp_path / "out").stdout
    assert "unfinished: 150 of 200 rows" in shown
    assert f"{texts / '3.txt'}: rows 0 to 49" in shown


def test_output_whose_pass_has_not_begun_exits_with_3(texts: Path, tmp_path: Path) -> None:
    layout = make_output(job(texts, tmp_path / "out"), complete=False)
    Lease.new(layout, 1, begun=False).write_if_unchanged(layout, read_lease(layout))
    assert verified(tmp_path / "out").exit_code == 3


def test_printed_text_says_what_is_proven(texts: Path, tmp_path: Path) -> None:
    make_output(job(texts, tmp_path / "out"), every_tenth)
    done = invoke(tmp_path / "out")
    assert (done.exit_code, done.stderr) == (0, "")
    shown = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [name for name, _ in shown[:5]] == ["output", "result", "rows", "input", "committed"]
    assert shown[2][1] == "200 = 160 written + 20 failed + 20 filtered"
    assert shown[3][1] == "200 rows in 4 files, 4 of them recounted"


def test_endpoint_of_an_output_is_not_reached_unless_trusted(
    s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put(bucket, {"in/a.txt": b"text\n" * 50})
    storage = {"endpoint": s3.endpoint, "region": "us-east-1"}
    source, output = f"s3://{bucket}/in", tmp_path / "out"
    make_output(job_document("down", source, output, read={"storage": storage}))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    refused = invoke(output)
    assert refused.exit_code == 2
    assert f"'{output}' names the endpoint {s3.endpoint} for its input" in refused.stderr
    assert invoke(output, "--trust-output").exit_code == 0
    stored = output / "_batchinference/spec.json"
    spec = json.loads(stored.read_text())
    spec["read"]["storage"]["anonymous"] = True  # the server must not be reached either
    stored.write_text(json.dumps(spec))
    refused = invoke(output)
    assert (refused.exit_code, "names the endpoint" in refused.stderr) == (2, True)


def test_no_secret_is_printed(s3: S3Server, bucket: str) -> None:
    s3.put(bucket, {f"in/{n}.txt": b"text\n" * 50 for n in range(4)})
    given = job_document("s3", f"s3://{bucket}/in", f"s3://{bucket}/out", errors=TOLERANT)
    make_output(given, every_tenth, complete=False)
    for output in (f"s3://{bucket}/out", f"s3://{bucket}/nowhere", "s3://no-such-bucket/out"):
        done = invoke(output)
        assert done.exit_code == (3 if output.endswith("out") and bucket in output else 2)
        assert not {ACCESS_KEY, SECRET_KEY} & set((done.stdout + done.stderr).split())
        assert SECRET_KEY not in done.output + done.stderr


LINE = "a" * 1000 + "\n"
FEW, MANY = 4_000, 40_000
MORE_MEMORY = 16 << 20
"""The limit, in bytes, on the extra memory of the larger run, which reads 72 MB more."""
VERIFY = """
import re, sys
from pathlib import Path
from batchinference.pipeline.input.readers import text_lines
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify import file_check, row_check
from batchinference.pipeline.verify import verify as verification
from batchinference.pipeline.verify.verify import verify

# so that the smaller run fills its buffers
text_lines.CHUNK_BYTES = file_check.CHUNK_BYTES = 1 << 18
verification.THREADS = row_check.THREADS = 2
proof = verify(Location(sys.argv[1]))
# ru_maxrss would count what the parent had
(peak,) = re.findall(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())
print(proof.result, int(peak) * 1024)
"""


def peak_memory(directory: Path, rows: int, write: Document) -> int:
    """Return the peak memory of a verification of this many rows, in bytes."""
    (directory / f"{rows}.txt").write_text(LINE * rows)
    out = directory / f"out-{rows}"
    make_output(job_document("many", directory / f"{rows}.txt", out, write=write), tasks=1)
    done = subprocess.run([sys.executable, "-c", VERIFY, str(out)],
                          capture_output=True, text=True, check=True, timeout=120)  # fmt: skip
    result, peak = done.stdout.split()
    assert result == "proven"
    return int(peak)


@pytest.mark.long("memory")
@pytest.mark.parametrize("write", [{"format": "json"}, {"format": "csv", "compression": "gzip"}])
def test_memory_does_not_grow_with_rows(tmp_path: Path, write: Document) -> None:
    few, many = (peak_memory(tmp_path, rows, write) for rows in (FEW, MANY))
    assert many < few + MORE_MEMORY
