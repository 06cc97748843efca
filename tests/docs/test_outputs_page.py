"""Each `write` of docs/outputs.md writes rows that the format's own library reads back."""

from __future__ import annotations

import tarfile
from copy import deepcopy
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import lance
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pytest
import sqlalchemy as sa
from PIL import Image
from pyiceberg.catalog import load_catalog

from batchinference.api.job_files import with_absolute_paths
from batchinference.pipeline.output.output_rows import first_rows
from batchinference.spec import BatchInference, parse
from batchinference.spec.report import JobState
from support.documents.minimal import Document
from support.documents.pages import jobs
from support.inputs.photographs import photograph
from support.jobs.on_ray import job_document
from support.jobs.without_ray import run_without_ray
from support.models import tiny_transformers
from support.outputs.verify_command import verified
from support.servers.stores import FakeOpensearch, LocalQdrant, stored_in

PHOTOGRAPHS = ["astronaut", "chelsea", "coffee"]
WITHOUT_ROWS = "./out/none"
"""The path of the example of an output without rows."""
ALL = {job["write"]["path"]: job["write"] for job in jobs("docs/outputs.md") if "write" in job}
WRITES = {
    write["format"]: write
    for path, write in ALL.items()
    if path != WITHOUT_ROWS and "mode" not in write and "vectorColumn" not in write
}
VECTORS = {write["format"]: write for write in ALL.values() if "vectorColumn" in write}
ADD_COLUMN, PASSAGES = (
    next(job for job in jobs("docs/outputs.md") if job.get("metadata") == {"name": name})
    for name in ("add-column", "passages")
)
FORMATS = ["parquet", "csv", "webdataset", "lance", "delta", "iceberg", "sql"]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("in") / "pets"
    folder.mkdir()
    for name in PHOTOGRAPHS:
        small(name).save(folder / f"{name}.png")
    return folder


def small(name: str) -> Image.Image:
    return Image.fromarray(photograph(name)).resize((32, 24))


def test_page_has_every_format() -> None:
    assert list(WRITES) == FORMATS


@pytest.mark.parametrize("format_", FORMATS)
def test_rows_are_read_back(format_: str, photos: Path, tmp_path: Path) -> None:
    job = job_of(photos, tmp_path, WRITES[format_])
    report = run_without_ray(job, rows_per_task=200)
    assert report.message is None
    assert report.counts is not None
    assert (report.counts.read, report.counts.written) == (3, 3)
    assert sorted(READ[format_](tmp_path)) == [f"{name}.png" for name in PHOTOGRAPHS]
    assert len(first_rows(job.spec.write, 2)) == 2
    assert run_without_ray(job).message == "the output was complete already"
    assert verified(job.spec.write.path).result == "proven"


def job_of(photos: Path, path: Path, write: Document, *steps: Document) -> BatchInference:
    document = job_document(
        "outputs",
        photos,
        path / "out",
        read={"format": "images", "options": {"includePaths": True}},
        steps=[
            {"name": "class", "labelFromPath": {"column": "class", "index": -2}},
            {"name": "name", "labelFromPath": {"column": "name", "index": -1}},
            {"name": "embed", "python": {"callable": "support.jobs.user_code:embed"}},
            {"name": "slim", "dropColumns": ["path"]},
            *steps,
        ],
    )
    document["spec"]["write"] = write
    return with_absolute_paths(parse(document), path)


def test_output_without_rows_has_columns(photos: Path, tmp_path: Path) -> None:
    nobody = {"name": "nobody", "filter": "name == 'nobody'"}
    report = run_without_ray(job_of(photos, tmp_path, ALL[WITHOUT_ROWS], nobody))
    assert report.message is None
    output = tmp_path / WITHOUT_ROWS
    assert list(pd.read_parquet(output).columns) == ["name", "embedding"]
    rows = duckdb.sql(f"select * from '{output}/*.parquet'")
    assert list(map(str, rows.types)) == ["VARCHAR", "FLOAT[]"]


def test_rows_of_new_photographs_are_merged(photos: Path, tmp_path: Path) -> None:
    merged = ALL["./out/merged"]
    job = job_of(photos, tmp_path, merged)
    assert run_without_ray(job).state == JobState.SUCCEEDED
    again = job_of(photos, tmp_path, merged, {"name": "same", "filter": "name != ''"})
    report = run_without_ray(again)
    assert report.state == JobState.SUCCEEDED, report.message
    rows = deltalake.DeltaTable(tmp_path / merged["path"]).to_pyarrow_table().to_pylist()
    assert sorted(names(rows)) == [f"{name}.png" for name in PHOTOGRAPHS]


def test_vectors_are_put_into_opensearch(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stored_in(FakeOpensearch("photos")) as store:
        monkeypatch.setenv(VECTORS["opensearch"]["urlEnv"], store.url)
        job = job_of(photos, tmp_path, VECTORS["opensearch"])
        assert run_without_ray(job).message is None
        assert sorted(names(store.rows())) == [f"{name}.png" for name in PHOTOGRAPHS]
        assert len(first_rows(job.spec.write, 2)) == 2
        assert verified(job.spec.write.path, "--trust-output").result == "proven"


def test_passages_are_put_into_qdrant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bert").mkdir()
    tiny_transformers.write("masked_model", tmp_path / "bert")
    (tmp_path / "articles").mkdir()
    lines = '{"id": 1, "text": "' + "cats sleep. " * 100 + '"}\n{"id": 2, "text": "dogs run."}\n'
    (tmp_path / "articles" / "a.jsonl").write_text(lines)
    given = deepcopy(PASSAGES)
    given["spec"]["steps"][1]["model"]["source"] = str(tmp_path / "bert")
    given["spec"]["write"]["dimensions"] = 32
    job = with_absolute_paths(parse(given), tmp_path)
    with stored_in(LocalQdrant("passages")) as store:
        monkeypatch.setenv("QDRANT_URL", store.url)
        report = run_without_ray(job)
        assert report.state == JobState.SUCCEEDED, report.message
        result = {(row["id"], row["chunk_index"]): len(row["vector"]) for row in store.rows()}
        assert result == {(1, 0): 32, (1, 1): 32, (2, 0): 32}
        assert verified(job.spec.write.path, "--trust-output").result == "proven"


def test_vectors_are_put_into_postgresql(
    photos: Path, tmp_path: Path, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VECTORS["sql"]["urlEnv"], postgres)
    with sa.create_engine(postgres).begin() as connection:
        connection.execute(sa.text("CREATE EXTENSION vector"))
    job = job_of(photos, tmp_path, VECTORS["sql"])
    assert run_without_ray(job).message is None
    with sa.create_engine(postgres).connect() as connection:
        rows = connection.execute(sa.text("SELECT name, vector_dims(embedding) FROM photos"))
        assert sorted(rows) == [(f"{name}.png", 3) for name in PHOTOGRAPHS]
    assert verified(job.spec.write.path, "--trust-output").result == "proven"


def test_column_is_added(tmp_path: Path) -> None:
    data = tmp_path / "texts.lance"
    lance.write_dataset(pa.table({"text": ["a", "bcd"]}), data)
    report = run_without_ray(with_absolute_paths(parse(ADD_COLUMN), tmp_path))
    assert report.state == JobState.SUCCEEDED, report.message
    assert lance.dataset(data).to_table().to_pydict() == {"text": ["a", "bcd"], "length": [1, 3]}


def parquet(path: Path) -> list[str]:
    table = pads.dataset(path / "out/parquet", partitioning="hive").to_table()
    assert set(table.column("class").to_pylist()) == {"pets"}
    return names(table.to_pylist())


def csv_(path: Path) -> list[str]:
    table = pads.dataset(path / "out/csv", format="csv").to_table()
    assert sorted(table.column("row").to_pylist()) == [0, 10**12, 2 * 10**12]
    return list(table.sort_by("row").column("name").to_pylist())


def webdataset(path: Path) -> list[str]:
    result = []
    for file in (path / "out/webdataset").glob("*.tar"):
        with tarfile.open(file) as tar:
            result += tar.getnames()
    members = {name.split(".", 1)[1] for name in result}
    assert members == {"class.txt", "image.png", "embedding.npy", "__key__.txt"}
    return [name.split(".")[0].replace("_png", ".png") for name in result if "image" in name]


def lance_(path: Path) -> list[str]:
    return names(lance.dataset(path / "out/lance").to_table().to_pylist())


def delta(path: Path) -> list[str]:
    return names(deltalake.DeltaTable(path / "out/delta").to_pyarrow_table().to_pylist())


def iceberg(path: Path) -> list[str]:
    uri = f"sqlite:///{path}/catalog.db"
    catalog = load_catalog("default", type="sql", uri=uri, warehouse=f"{path}/warehouse")
    return names(catalog.load_table("photos.embeddings").scan().to_arrow().to_pylist())


def sql(path: Path) -> list[str]:
    with sa.create_engine(f"sqlite:///{path}/photos.db").connect() as connection:
        return list(connection.execute(sa.text("select name from photos")).scalars())


def names(rows: list[dict[str, Any]]) -> list[str]:
    assert all(len(row["embedding"]) == 3 for row in rows)
    return [row["name"] for row in rows]


READ = {
    **{"parquet": parquet, "csv": csv_, "webdataset": webdataset},
    **{"lance": lance_, "delta": delta, "iceberg": iceberg, "sql": sql},
}
