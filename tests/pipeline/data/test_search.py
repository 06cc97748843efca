"""Search in a finished output: its files, columns and rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from batchinference.pipeline.errors import BadInput, JobFailure
from batchinference.pipeline.query import of_row
from batchinference.pipeline.search.index import INSPECTED_FILES, Index, open_index
from batchinference.pipeline.search.search import RowFilter, search
from batchinference.pipeline.storage.location import Location
from support.outputs.builders import embedded, finished_output, vectors

WIDTH = 8
ROWS = vectors(60, WIDTH)
FILES = [
    embedded(part, path=[f"s3://in/{n}.jpg" for n in range(start, start + len(part))])
    for start, part in ((0, ROWS[:25]), (25, ROWS[25:26]), (26, ROWS[26:]))
]


def index_of(directory: Path | str, column: str | None = None) -> Index:
    return open_index(Location(str(directory)), column)


def nearest(query: np.ndarray, rows: np.ndarray = ROWS) -> list[int]:
    """Return row numbers, the most similar first."""
    similarities = rows @ query / np.linalg.norm(rows, axis=1)
    return np.argsort(-similarities).tolist()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return index_of(finished_output(tmp_path_factory.mktemp("out") / "out", *FILES))


def test_search_covers_all_files(index: Index) -> None:
    queries = vectors(3, WIDTH, seed=1)
    found = search(index, queries, 7)
    for number, query in enumerate(queries):
        similarities, rows = found.of(number)
        assert rows.tolist() == nearest(query)[:7]
        lengths = np.linalg.norm(ROWS[rows], axis=1) * np.linalg.norm(query)
        assert similarities == pytest.approx(ROWS[rows] @ query / lengths, abs=1e-5)
    assert sorted(search(index, ROWS[:1], 1000).of(0)[1]) == list(range(60))


def test_row_numbers_run_over_all_files(index: Index) -> None:
    rows = np.array([59, 0, 25, 24, 26, 0])
    taken = index.take(rows, ["path"]).column("path").to_pylist()
    assert taken == [f"s3://in/{row}.jpg" for row in rows]
    assert index.starts.tolist() == [0, 25, 26, 60]


def test_row_is_its_own_nearest(index: Index) -> None:
    for row in ("25", "path=s3://in/25.jpg"):
        similarities, rows = search(index, of_row(index, row), 2).of(0)
        assert rows[0] == 25
        assert similarities[0] == pytest.approx(1, abs=1e-6)


def test_filter_limits_the_results(index: Index) -> None:
    choice = RowFilter(["path"], lambda batch: pc.match_substring(batch.column("path"), "/3"))
    rows = search(index, ROWS[:1], 20, choice).of(0)[1].tolist()
    chosen = [3, *range(30, 40)]
    assert rows == [row for row in nearest(ROWS[0]) if row in chosen]


def test_any_list_of_floats_is_an_embedding(tmp_path: Path) -> None:
    for numbers in (pa.float16(), pa.float32(), pa.float64()):
        values = [row.astype(numbers.to_pandas_dtype()) for row in ROWS[:5]]
        for list_type in (pa.list_, pa.large_list):
            kind = list_type(numbers)
            table = pa.table({"vector": pa.array(values, kind), "n": range(5)})
            index = index_of(finished_output(tmp_path / str(kind), table))
            assert index.column == "vector"
            assert search(index, ROWS[:1], 1).of(0)[1].tolist() == [0], kind


def test_rows_without_embedding_are_skipped(tmp_path: Path) -> None:
    lists = pa.array([None, [0.0, 0.0], [None, 1.0], [1.0, 2.0]], pa.list_(pa.float32()))
    index = index_of(finished_output(tmp_path / "out", pa.table({"embedding": lists})))
    found = search(index, np.ones((1, 2)), 4)
    assert found.of(0)[1].tolist() == [3]
    assert found.skipped == 3
    with pytest.raises(BadInput, match=r"^row 0 of '.*out' has no embedding, or a zero vector"):
        of_row(index, "0")


def test_null_columns_of_earlier_files_are_typed_by_later_files(tmp_path: Path) -> None:
    nulls = pa.table({"note": pa.nulls(2), "embedding": pa.nulls(2)})
    filled = embedded(ROWS[:2], note=["a", "b"])
    index = index_of(finished_output(tmp_path / "out", nulls, filled))
    assert search(index, ROWS[:1], 1).of(0)[1].tolist() == [2]
    assert index.take(np.array([2, 0]), ["note"]).to_pylist() == [{"note": "a"}, {"note": None}]
    many = [pa.table({"embedding": pa.nulls(1)})] * (INSPECTED_FILES + 1)
    index = index_of(finished_output(tmp_path / "many", *many, embedded(ROWS[:2])))
    assert search(index, ROWS[:1], 1).of(0)[1].tolist() == [len(many)]


def test_partitions_are_columns_and_hidden_folders_are_skipped(tmp_path: Path) -> None:
    out = Path(finished_output(tmp_path / "out", embedded(ROWS[:3], n=range(3))))
    for place in ("class=cat", "class=dog", "_batchinference/errors"):
        (out / place).mkdir(parents=True)
        (out / place / "part.parquet").write_bytes((out / "part-0000.parquet").read_bytes())
    (out / "part-0000.parquet").unlink()
    index = index_of(out)
    taken = index.take(search(index, ROWS[1:2], 2).of(0)[1], ["class", "n"])
    assert taken.to_pylist() == [{"class": "cat", "n": 1}, {"class": "dog", "n": 1}]
    assert index.starts.tolist() == [0, 3, 6]


def test_ambiguous_or_unknown_column_is_rejected(tmp_path: Path) -> None:
    lists = pa.array([[1.0], [2.0]])
    table = pa.table({"a": lists, "b": lists, "text": ["x", "y"]})
    out = finished_output(tmp_path / "out", table)
    assert index_of(out, "b").column == "b"
    for column, reason in (
        (None, "holds embeddings in a, b: name one of these columns"),
        ("text", r"column 'text' of '.*' is string; embeddings are in a, b"),
        ("c", r"column 'c' of '.*' is not there; embeddings are in a, b"),
    ):
        with pytest.raises(BadInput, match=reason):
            index_of(out, column)
    other = pa.table({"tokens": [[1, 2]], "pixels": [[[0.5]]], "text": ["x"]})
    reason = r"no embeddings, .* float32 .*tokens \(list<.*int64>\), pix"
    with pytest.raises(BadInput, match=reason):
        index_of(finished_output(tmp_path / "other", other))


def test_missing_or_unfinished_output_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"nowhere' does not exist"):
        index_of(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="is not the output of a BatchInference"):
        index_of(tmp_path)
    out = Path(finished_output(tmp_path / "out", FILES[0]))
    (out / "_SUCCESS").unlink()
    with pytest.raises(BadInput, match=r"is not finished: there is no '.*_SUCCESS'"):
        index_of(out)
    with pytest.raises(BadInput, match="holds no rows"):
        index_of(finished_output(tmp_path / "empty"))


def test_unfinished_append_is_rejected(tmp_path: Path) -> None:
    out = finished_output(tmp_path / "out", FILES[0])
    assert len(index_of(out).dataset.files) == 1
    added = finished_output(out, FILES[1], write={"mode": "append"})
    assert added == out
    assert index_of(out).spec.write.mode == "error"
    (success,) = Path(out).glob("_batchinference/append-*/_SUCCESS")
    success.unlink()
    with pytest.raises(BadInput, match=r"is not finished: there is no '.*append-.*/_SUCCESS'"):
        index_of(out)


def test_damaged_spec_json_and_other_formats_are_rejected(tmp_path: Path) -> None:
    for form in ("csv", "json"):
        out = finished_output(tmp_path / form, FILES[0], write={"format": form})
        with pytest.raises(BadInput, match=rf"only outputs in Parquet .* is {form}\). Write the"):
            index_of(out)
    damaged = Path(finished_output(tmp_path / "out", FILES[0]))
    for content in ("{", "[]", '{"read": 1}'):
        (damaged / "_batchinference" / "spec.json").write_text(content)
        with pytest.raises(BadInput, match=r"spec.json' is damaged, or was written by another"):
            index_of(damaged)


def test_embeddings_of_another_width_are_rejected(tmp_path: Path) -> None:
    lists = pa.array([None, [1.0, 2.0], [1.0, 2.0, 3.0]], pa.list_(pa.float32()))
    index = index_of(finished_output(tmp_path / "out", pa.table({"embedding": lists})))
    message = "row 2 of '.*' has 3 numbers in column 'embedding' where the query has 2"
    with pytest.raises(BadInput, match=message):
        search(index, np.ones((1, 2)), 1)


def test_damaged_file_error_names_output_and_file(tmp_path: Path) -> None:
    out = Path(finished_output(tmp_path / "out", FILES[0], FILES[1]))
    index = index_of(out)
    (out / "part-0001.parquet").write_bytes(b"PAR1 nonsense PAR1")
    with pytest.raises(JobFailure, match=r"out' cannot be read: .*part-0001"):
        search(index, ROWS[:1], 1)


def test_files_behind_links_are_not_searched(tmp_path: Path) -> None:
    finished_output(tmp_path / "private", embedded(ROWS[:7]))
    out = Path(finished_output(tmp_path / "out", embedded(ROWS[:3])))
    (out / "linked.parquet").symlink_to(tmp_path / "private" / "part-0000.parquet")
    (out / "day=1").symlink_to(tmp_path / "private")
    assert index_of(out).starts.tolist() == [0, 3]


def test_unknown_row_is_rejected(index: Index) -> None:
    for row, message in (
        ("60", "there is no row 60: '.*' has 60 rows, counted from 0"),
        ("colour=red", "--row takes .*COLUMN=VALUE, got 'colour=red'; the columns are path, emb"),
        ("-1", "--row takes the number of a row or COLUMN=VALUE, got '-1'"),
        ("path=nowhere", "path=nowhere is true for no row"),
        ("embedding=1", "--row: '1' is no list.*, which column 'embedding' holds"),
    ):
        with pytest.raises(BadInput, match=message):
            of_row(index, row)


def test_ambiguous_value_is_rejected(tmp_path: Path) -> None:
    table = embedded(ROWS, n=[row % 9 for row in range(60)])
    index = index_of(finished_output(tmp_path / "out", table))
    with pytest.raises(BadInput, match=r"n=3 is true for rows 3, 12, 21, 30, 39\.\.\.: choose one"):
        of_row(index, "n=3")
    with pytest.raises(BadInput, match="--row: 'three' is no int64, which column 'n' holds"):
        of_row(index, "n=three")
