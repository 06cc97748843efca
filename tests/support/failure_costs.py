"""The cost of failures: CPU seconds without failures, with one, and with twice as many.

Each case is a function of a number of rows and a number of failures. It makes the input, and
returns the work to measure. `python -m support.failure_costs` prints the table of
docs/contributing/benchmarks.md."""

from __future__ import annotations

import io
import itertools
import json
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from batchinference.api.output_status import error_groups
from batchinference.pipeline.commit.job_pass import JobPass
from batchinference.pipeline.commit.manifest import DataFile, ManifestEntry, Origin
from batchinference.pipeline.commit.row_coverage import resolve_overlaps
from batchinference.pipeline.exact_json import load_unique
from batchinference.pipeline.execution.step_runner import ErrorHandling, SegmentRunner
from batchinference.pipeline.output.file_rewrites import OutputSchema, without_removed
from batchinference.pipeline.output.file_split import FileSplit
from batchinference.pipeline.output.writers.json import JsonWriter
from batchinference.pipeline.row_batch import FULL_SHARE, RowBatch, consecutive_ids
from batchinference.pipeline.runtimes.structured_answers import InvalidAnswer, StructuredRuntime
from batchinference.pipeline.storage.location import Location
from batchinference.pipeline.verify.findings import Result
from batchinference.pipeline.verify.verify import verify
from batchinference.plan import Stage
from batchinference.spec.models import HttpModel
from batchinference.spec.progress import Counts
from batchinference.spec.steps import Step
from support.documents.http_models import chat
from support.documents.minimal import document
from support.inputs.read_files import open_input
from support.jobs.without_ray import run_without_ray
from support.outputs.builders import entry

ROUNDS = 2
Work = Callable[[], None]
Make = Callable[[Path, int, int], Work]
"""Makes the input of a case in a directory, with so many rows and failures."""


@dataclass(frozen=True)
class Case:
    """What fails, the number of rows, and the number of failures that is doubled."""

    name: str
    make: Make
    rows: int
    failures: int


@dataclass(frozen=True)
class Cost:
    """The CPU seconds of a case."""

    clean: float
    one: float
    many: float
    twice: float
    """With twice the rows and twice the failures of `many`."""


def measure(case: Case, rounds: int = ROUNDS) -> Cost:
    """Return the lowest CPU seconds of several rounds."""
    sizes = [(case.rows, 0), (case.rows, 1), (case.rows, case.failures)]
    sizes.append((2 * case.rows, 2 * case.failures))
    with tempfile.TemporaryDirectory() as directory:
        works = []
        for number, (rows, failures) in enumerate(sizes):
            path = Path(directory) / str(number)
            path.mkdir()
            works.append(case.make(path, rows, failures))
        works[0]()  # imports and caches
        runs = [[_seconds(work) for work in works] for _ in range(rounds)]
    return Cost(*(min(seconds) for seconds in zip(*runs, strict=True)))


def _seconds(work: Work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _bad(rows: int, failures: int) -> Callable[[int], bool]:
    """Return whether a row is bad. The failures are spread over all rows."""
    bad = {(number * rows) // max(1, failures) + rows // 2 // max(1, failures)
           for number in range(failures)}  # fmt: skip
    return bad.__contains__


def _reading(file_format: str, path: Path, **options: Any) -> Work:
    def work() -> None:
        opened = open_input(file_format, path, **options)
        for batch in opened.file_rows.read(opened.snapshot.files()):
            assert batch.nbytes >= 0

    return work


def _csv(bad: str) -> Make:
    def make(path: Path, rows: int, failures: int) -> Work:
        is_bad = _bad(rows, failures)
        columns = range(12)
        header = ",".join(f"c{number}" for number in columns)
        good = ",".join("123456" for _ in columns)
        lines = (bad if is_bad(row) else good for row in range(rows))
        (path / "a.csv").write_text("\n".join([header, *lines, ""]))
        types = {f"c{number}": "int64" for number in columns}
        return _reading("csv", path, types=types)

    return make


def _json(bad: str) -> Make:
    def make(path: Path, rows: int, failures: int) -> Work:
        is_bad = _bad(rows, failures)
        good = json.dumps({f"c{number}": number for number in range(12)})
        lines = (bad if is_bad(row) else good for row in range(rows))
        (path / "a.jsonl").write_text("\n".join([*lines, ""]))
        return _reading("json", path, types={"c1": "int64"})

    return make


def _parquet_types(path: Path, rows: int, failures: int) -> Work:
    is_bad = _bad(rows, failures)
    values = ["x" if is_bad(row) else "1" for row in range(rows)]
    pq.write_table(pa.table({"n": values, "m": values}), path / "a.parquet")
    return _reading("parquet", path, types={"n": "int64"})


def _tar(suffix: str, bad: bytes) -> Make:
    def make(path: Path, rows: int, failures: int) -> Work:
        is_bad = _bad(rows, failures)
        with tarfile.open(path / "a.tar", "w") as archive:
            for row in range(rows):
                content = bad if is_bad(row) else b'{"a": 1}'
                member = tarfile.TarInfo(f"{row:06}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        return _reading("webdataset", path)

    return make


def _tar_names(path: Path, rows: int, failures: int) -> Work:
    """Names of slashes and dots, as long as the number of failures, without an extension."""
    long = [f"{part * failures}x" for part in ("./", "/", "a/")]
    with tarfile.open(path / "a.tar", "w") as archive:
        for name in (*(f"{row:06}.txt" for row in range(rows)), *long):
            member = tarfile.TarInfo(name)
            archive.addfile(member, io.BytesIO(b""))
    return _reading("webdataset", path)


def numbers_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {"n": [int(text) for text in batch["text"]]}


def _step(path: Path, rows: int, failures: int) -> Work:
    """A step that raises for some rows."""
    is_bad = _bad(rows, failures)
    texts = ["x" if is_bad(row) else "1" for row in range(rows)]
    step = Step.model_validate(
        {"name": "own", "python": {"callable": "support.failure_costs:numbers_of"}}
    )
    return _running(step, pa.table({"text": texts}))


def _decode(path: Path, rows: int, failures: int) -> Work:
    is_bad = _bad(rows, failures)
    texts = ["{" if is_bad(row) else '{"a": 1}' for row in range(rows)]
    step = Step.model_validate(
        {"name": "decode", "decode": {"column": "text", "format": "json", "fields": {"a": "int64"}}}
    )
    return _running(step, pa.table({"text": texts}))


def _running(step: Step, table: pa.Table) -> Work:
    handling = ErrorHandling(tolerant=True, input=Location("/nowhere/input.parquet"))
    run = SegmentRunner([Stage("stage", (step,))], handling)
    batch = RowBatch.read(table, consecutive_ids(0, 0, table.num_rows))

    def work() -> None:
        assert sum(len(result.input_ids) for result in run(batch)) == table.num_rows

    return work


def _expression(path: Path, rows: int, failures: int) -> Work:
    is_bad = _bad(rows, failures)
    texts = ["x" if is_bad(row) else "1" for row in range(rows)]
    step = Step.model_validate({"name": "n", "addColumns": {"n": "int(text)"}})
    return _running(step, pa.table({"text": texts}))


def _texts(path: Path, rows: int, failures: int) -> Work:
    is_bad = _bad(rows, failures)
    lines = (b"\xff" if is_bad(row) else b"a line" for row in range(rows))
    (path / "a.txt").write_bytes(b"\n".join(lines))
    return _reading("text", path)


def _images(path: Path, rows: int, failures: int) -> Work:
    is_bad = _bad(rows, failures)
    stored = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 30, 30)).save(stored, "JPEG")
    for row in range(rows):
        content = b"\xff\xd8 no image" if is_bad(row) else stored.getvalue()
        (path / f"{row:06}.jpg").write_bytes(content)
    return _reading("images", path)


def _job(path: Path, rows: int, failures: int) -> Work:
    """A job with failed rows, from its plan to the groups of its errors and `verify`."""
    is_bad = _bad(rows, failures)
    (path / "in").mkdir()
    (path / "in" / "a.txt").write_text(
        "\n".join("x" if is_bad(row) else "1" for row in range(rows))
    )
    runs = itertools.count()

    def work() -> None:
        output = str(path / f"out-{next(runs)}")
        job = document(
            "costs",
            read={"format": "text", "paths": [str(path / "in")]},
            steps=[{"name": "n", "addColumns": {"n": "int(text)"}}],
            write={"format": "parquet", "path": output},
            errors={"maxPercent": 100},
        )
        run_without_ray(job, rows_per_task=4_000)
        assert sum(group.rows for group in error_groups(output)) == failures
        assert verify(Location(output)).result == Result.PROVEN

    return work


def _partitions(path: Path, rows: int, failures: int) -> Work:
    """Each value of the column of partitions is a directory."""
    table = pa.table({"n": range(rows), "day": [str(row % (failures + 1)) for row in range(rows)]})
    layout = FileSplit(partition_by=("day",))

    def work() -> None:
        assert sum(len(part) for _, part in layout.split(table)) == rows
        assert sum(map(len, layout.indexes(table))) == rows

    return work


def _columns(path: Path, rows: int, failures: int) -> Work:
    """Commits of one row whose files lack some of the columns of others."""
    return _unifying(path, rows, 100, lacking=failures > 0)


def _many_columns(path: Path, rows: int, failures: int) -> Work:
    """A fixed number of commits. The number of columns grows with the failures."""
    return _unifying(path, 100, 10 + failures, lacking=failures > 0)


def _unifying(path: Path, commits: int, columns: int, *, lacking: bool) -> Work:
    def commit(number: int) -> ManifestEntry:
        absent = number % columns if lacking else None
        names = [f"c{column}" for column in range(columns) if column != absent]
        data = [DataFile(f"part-{number}", 1, 1)]
        types = [(name, "int64") for name in names]
        return ManifestEntry(Counts(read=1, written=1), [(number, 0, 1)], [], data, types, None)

    entries = [commit(number) for number in range(commits)]

    def work() -> None:
        schema = OutputSchema.of(Location(str(path)), entries, JsonWriter("none"))
        assert len(schema.names) == columns

    return work


def _split_rows(path: Path, rows: int, failures: int) -> Work:
    """Commits that share an input row with the next one. The first is lost."""
    half = FULL_SHARE // 2
    entries = [entry(shares=[(0, row, half), (0, row + 1, half)]) for row in range(rows)]

    def work() -> None:
        assert resolve_overlaps(entries) == []

    return work


def _removed_rows(path: Path, rows: int, failures: int) -> Work:
    """A commit of one row per data file, of an input file whose rows are removed."""
    data = [DataFile(f"part-{row}", 1, 1) for row in range(rows)]
    origins = [Origin(0, [(row, 1) for row in range(rows)], Counts(), removed=True)]
    commit = replace(entry(), data=data, origins=origins)
    job_pass = cast(JobPass, SimpleNamespace(layout=SimpleNamespace(data=Location(str(path)))))

    def work() -> None:
        assert without_removed(job_pass, commit, JsonWriter("none")).data == []

    return work


def _gaps_of_csv_manifest(path: Path, rows: int, failures: int) -> Work:
    (path / "in").mkdir()
    (path / "in" / "a.csv").write_text("uri,note\n" + f"../x.txt,{'n' * 500}\n" * rows)
    return _gaps_of_manifest(path, rows, failures)


def _gaps_of_parquet_manifest(path: Path, rows: int, failures: int) -> Work:
    (path / "in").mkdir()
    table = pa.table({"uri": ["../x.txt"] * rows, "note": [str(row) * 100 for row in range(rows)]})
    pq.write_table(table, path / "in" / "a.parquet")
    return _gaps_of_manifest(path, rows, failures)


def _gaps_of_manifest(path: Path, rows: int, failures: int) -> Work:
    """A job that is resumed: each gap is a row of a manifest."""
    (path / "x.txt").write_text("x")
    opened = open_input("manifest", path / "in", column="uri", decode="text", allow=[str(path)])
    wanted = range(rows // 2 // max(1, failures), rows, rows // max(1, failures))
    gaps = {0: [(row, row + 1) for row in wanted[:failures]]}

    def work() -> None:
        tasks = opened.given.read_tasks(4, gaps)
        assert sum(len(batch.ids) for task in tasks for batch in task()) == failures

    return work


def _fields(path: Path, rows: int, failures: int) -> Work:
    """An object with many fields, whose last one is named twice."""
    names = [f"f{number}" for number in range(rows)] + [f"f{rows - 1}"] * (failures > 0)
    document = f"{{{', '.join(f'{json.dumps(name)}: 1' for name in names)}}}"

    def work() -> None:
        with suppress(ValueError):
            load_unique(document)

    return work


def _answers(path: Path, rows: int, failures: int) -> Work:
    """Answers with a schema, whose rows are asked for again five times if they do not fit."""
    is_bad = _bad(rows, failures)
    kinds = {"label": {"type": "string", "enum": ["a", "b"]}, "tags": {"type": "list<string>"}}
    kinds["score"] = {"type": "float32", "minimum": 0, "maximum": 1}
    fields = [{"name": name, **kind} for name, kind in kinds.items()]
    model = HttpModel.model_validate(chat(schema={"fields": fields}, repair=5))

    def answered(inputs: dict[str, Any]) -> list[Any]:
        scores = (9 if is_bad(row) else 0.5 for row in inputs["question"])
        answers = ({"label": "a", "score": score, "tags": ["x", "y"]} for score in scores)
        return [(json.dumps(answer), {"finish_reason": "stop"}) for answer in answers]

    def work() -> None:
        assert model.answer_schema is not None
        runtime = StructuredRuntime(model, model.answer_schema, lambda _: answered)
        result = runtime({"question": [*range(rows)]})
        assert sum(isinstance(result, InvalidAnswer) for result in result) == failures

    return work


CASES = [
    Case("a number that is no number in CSV", _csv("1,2,n/a-ish,4,5,6,7,8,9,10,11,12"), 40_000, 40),
    Case("a line with too few fields in CSV", _csv("1,2"), 40_000, 400),
    Case("an open quote in CSV", _csv('1,2,"3,4,5,6,7,8,9,10,11,12'), 40_000, 400),
    Case("a value of another type in JSON", _json('{"c1": "x"}'), 10_000, 100),
    Case("a line that is no JSON", _json('{"c1": 1'), 10_000, 100),
    Case("a value of another type in Parquet", _parquet_types, 100_000, 100),
    Case("a member that is no JSON in WebDataset", _tar("json", b"{"), 1_000, 100),
    Case("a member of another type in WebDataset", _tar("json", b'{"a": "x"}'), 2_000, 40),
    Case("a long name in WebDataset", _tar_names, 500, 40_000),
    Case("a row for which a step raises", _step, 4_000, 200),
    Case("a row that a decode step cannot decode", _decode, 20_000, 200),
    Case("an expression that fails for a row", _expression, 4_000, 100),
    Case("a line that is not UTF-8", _texts, 100_000, 200),
    Case("a file that is no image", _images, 200, 20),
    Case("a field of JSON that is named twice", _fields, 10_000, 1),
    Case("an answer that does not fit its schema, five times", _answers, 10_000, 200),
    Case("a job with failed rows, with errors and verify", _job, 500, 10),
    Case("values of the column of partitionBy", _partitions, 20_000, 4_000),
    Case("commits that lack a column", _columns, 1_000, 1),
    Case("columns of commits", _many_columns, 100, 1_000),
    Case("commits that share input rows, one of them lost", _split_rows, 3_000, 1),
    Case("data files of a commit whose rows are removed", _removed_rows, 8_000, 1),
    Case("gaps of a manifest in CSV", _gaps_of_csv_manifest, 20_000, 100),
    Case("gaps of a manifest in Parquet", _gaps_of_parquet_manifest, 2_000, 50),
]
BY_NAME = {case.name: case for case in CASES}


def rows_of_table() -> Iterator[str]:
    """Yield the lines of the table in Markdown."""
    yield "| failure | rows | clean | one failure | failures | ratio | twice of both |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for case in CASES:
        cost = measure(case)
        yield (
            f"| {case.name} | {case.rows:,} | {cost.clean:.2f} s | {cost.one / cost.clean:.2f} x "
            f"| {case.failures:,} | {cost.many / cost.clean:.2f} x "
            f"| {cost.twice / cost.many:.2f} x |"
        )


if __name__ == "__main__":
    for line in rows_of_table():
        print(line, flush=True)
