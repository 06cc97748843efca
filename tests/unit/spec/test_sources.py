"""Sources that are not files: SQL, Hugging Face data sets and Lance."""

from __future__ import annotations

import pytest

from batchinference.spec import parse
from batchinference.spec.read import ReadHuggingface, ReadLance, ReadSql
from support.documents.refusals import SOURCES, reading_source


@pytest.mark.parametrize("name", SOURCES)
def test_source_accepts_all_its_fields(name: str) -> None:
    job = reading_source(name)
    read = parse(job).spec.read
    assert read.model_dump(by_alias=True, exclude_unset=True) == job["spec"]["read"]


@pytest.mark.parametrize(
    ("url", "keys", "moved"),
    [
        ("sqlite:///data.db", "data.db", "sqlite:////jobs/data.db"),
        ("sqlite:////data/a.db", "/data/a.db", "sqlite:////jobs//data/a.db"),
        ("sqlite+pysqlite:///a.db?mode=ro", "a.db", "sqlite+pysqlite:////jobs/a.db?mode=ro"),
        ("sqlite:///sqlite", "sqlite", "sqlite:////jobs/sqlite"),
        ("sqlite:///:memory:", None, None),
        ("sqlite://", None, None),
        ("postgresql://user@host/db", None, None),
    ],
)
def test_sql_local_database_can_be_moved(url: str, keys: str | None, moved: str | None) -> None:
    read = ReadSql(format="sql", query="SELECT 1", url=url)
    assert read.locations == ({} if keys is None else {"url": keys})
    assert read.map_locations(lambda path: f"/jobs/{path}").url == (moved or url)


@pytest.mark.parametrize(
    "read",
    [
        ReadSql(format="sql", query="SELECT 1", urlEnv="DATABASE_URL"),
        *(
            ReadHuggingface(format="huggingface", name=name)
            for name in ("imdb", "org/data", "org/data.v1")
        ),
    ],
    ids=str,
)
def test_source_without_a_local_path_is_not_moved(read: ReadSql | ReadHuggingface) -> None:
    assert read.locations == {}
    assert read.map_locations(lambda path: f"/jobs/{path}") == read


@pytest.mark.parametrize("name", ["./data", "../data", "/data", "~/data", "file:///data"])
def test_huggingface_local_path_can_be_moved(name: str) -> None:
    read = ReadHuggingface(format="huggingface", name=name)
    assert read.locations == {"name": name}
    assert read.map_locations(lambda path: f"!{path}").name == f"!{name}"


def test_lance_path_can_be_moved() -> None:
    read = ReadLance(format="lance", path="data.lance")
    assert read.locations == {"path": "data.lance"}
    assert read.map_locations(lambda path: f"/jobs/{path}").path == "/jobs/data.lance"
