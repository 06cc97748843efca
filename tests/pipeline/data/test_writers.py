"""Writers: other libraries read back the rows that were written, in files of the wanted size."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import io
import json
import math
import pickle
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchinference.pipeline.arrow import concat, tensors_to_lists, to_column
from batchinference.pipeline.errors import BadOutput, JobFailure, UnwritableValue
from batchinference.pipeline.output.file_split import FileSplit, partitions
from batchinference.pipeline.output.output_rows import all_rows, first_rows
from batchinference.pipeline.output.writers import Writer
from batchinference.pipeline.output.writers.kinds import rewriting_writer_for, writer_for
from batchinference.pipeline.output.writers.parquet import ParquetWriter
from batchinference.pipeline.storage.partitions import NULL_DIRECTORY, partition_values
from batchinference.spec.write import WriteCsv, WriteJson, WriteParquet
from plugins.messages import Messages
from support.documents.parsed_write import write_of
from support.documents.refusals import short
from support.inputs.read_files import read_files
from support.tiers import examples


def encoded(writer: Writer, table: pa.Table) -> bytes:
    """Return the content of the only file that a writer makes after a pickle round trip."""
    ((_, content),) = pickle.loads(pickle.dumps(writer)).files(table)
    return bytes(content)


def parquet(table: pa.Table, compression: str = "snappy") -> pq.ParquetFile:
    write = WriteParquet(format="parquet", path="/out", compression=compression)
    return pq.ParquetFile(io.BytesIO(encoded(writer_for(write), table)))


def json_lines(table: pa.Table, compression: str = "none") -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file, read by a parser that rejects NaN and infinity."""
    write = WriteJson(format="json", path="/out", compression=compression)
    content = encoded(writer_for(write), table)
    text = (gzip.decompress(content) if compression == "gzip" else content).decode()
    assert text.endswith("\n")
    return [json.loads(line, parse_constant=pytest.fail) for line in text[:-1].split("\n")]


def everything() -> pa.Table:
    return pa.table(
        {
            "flag": [True, None],
            "small": pa.array([255, None], pa.uint8()),
            "real": pa.array([1.5, None], pa.float32()),
            "text": ['ü\n"\u2028', None],
            "list": [[1, None], None],
            "struct": [{"a": 1, "b": [{"c": "x"}]}, None],
            "none": pa.nulls(2),
        }
    )


def test_parquet_keeps_rows_and_types() -> None:
    for compression in ("snappy", "zstd", "gzip", "lz4", "none"):
        file = parquet(everything(), compression)
        assert file.read().equals(everything()), compression
        used = {file.metadata.row_group(0).column(at).compression for at in range(3)}
        assert used == {"UNCOMPRESSED" if compression == "none" else compression.upper()}
    values = parquet(pa.table({"x": [float("nan"), float("inf")]})).read().column("x").to_pylist()
    assert (math.isnan(values[0]), values[1]) == (True, float("inf"))


def test_json_keeps_rows() -> None:
    for compression in ("none", "gzip"):
        assert json_lines(everything(), compression) == everything().to_pylist(), compression


@pytest.mark.parametrize("format_", ["parquet", "json", "csv"])
def test_parts_of_columns_with_nested_nulls_are_written(format_: str) -> None:
    """Slices of such columns are special in Arrow."""
    rows = [{"s": {"a": None, "n": [None]}, "l": [{"a": None}]}, {"s": None, "l": [None]}]
    table = pa.Table.from_pylist([*rows, *rows]).slice(1, 2)
    content = encoded(writer_for(write_of(format_)), table)
    if format_ == "parquet":
        assert pq.read_table(io.BytesIO(content)).to_pylist() == table.to_pylist()
    else:
        complete = pa.Table.from_pylist(table.to_pylist(), table.schema)
        assert content == encoded(writer_for(write_of(format_)), complete)


def test_csv_writes_lists_as_json() -> None:
    table = everything().select(["flag", "real", "text", "list", "struct"])
    for compression, delimiter in (("none", ","), ("none", ";"), ("gzip", ","), ("gzip", ";")):
        options = {"compression": compression, "delimiter": delimiter}
        content = encoded(writer_for(WriteCsv(format="csv", path="/out", **options)), table)
        text = gzip.decompress(content) if compression == "gzip" else content
        (one, two) = csv.DictReader(io.StringIO(text.decode()), delimiter=delimiter)
        assert (one["flag"], one["real"], one["text"]) == ("true", "1.5", 'ü\n"\u2028')
        assert json.loads(one["list"]) == [1, None]
        assert json.loads(one["struct"]) == {"a": 1, "b": [{"c": "x"}]}
        assert set(two.values()) == {""}


def csv_text(table: pa.Table) -> str:
    return encoded(writer_for(write_of("csv")), table).decode()


EXACT = "00:00:00.000000001"
VALUES: dict[str, tuple[Any, str, Any]] = {
    "bytes": (pa.array([b"ab"], pa.binary(2)), '"YWI="', "YWI="),
    "date": ([dt.date(2020, 1, 2)], "2020-01-02", "2020-01-02"),
    "moment": (
        [dt.datetime(2020, 1, 2, 3, 4, 5, tzinfo=dt.UTC)],
        *("2020-01-02 03:04:05.000000Z", "2020-01-02 03:04:05+00:00"),
    ),
    "exact moment": (
        pa.array([1_600_000_000_000_000_001], pa.timestamp("ns")),
        *["2020-09-13 12:26:40.000000001"] * 2,
    ),
    "time": ([dt.time(3, 4, 5)], "03:04:05.000000", "03:04:05"),
    "exact time": (pa.array([1], pa.time64("ns")), EXACT, EXACT),
    "span": ([dt.timedelta(hours=1)], "1:00:00", "1:00:00"),
    "decimal": ([Decimal("1.50")], "1.50", "1.50"),
    "view": (pa.array(["x"], pa.string_view()), "x", "x"),
    "uuid": (pa.array([bytes(16)], pa.uuid()), *["00000000-0000-0000-0000-000000000000"] * 2),
    "document": (pa.array(['{"a": 1}'], pa.json_()), '{"a": 1}', '{"a": 1}'),
    "flag": (pa.array([1], pa.int8()).view(pa.bool8()), "true", True),
    "inner": ([[{"bytes": b"a"}]], '[{"bytes": "YQ=="}]', [{"bytes": "YQ=="}]),
    "inner time": (
        pa.array([[{"t": 1}]], pa.list_(pa.struct({"t": pa.time64("ns")}))),
        *(f'[{{"t": "{EXACT}"}}]', [{"t": EXACT}]),
    ),
    "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), '[["k", 1]]', [["k", 1]]),
}
"""Values, and how they are written to CSV and JSON."""


def test_text_formats_write_other_types_as_text() -> None:
    table = pa.table({name: values for name, (values, _, _) in VALUES.items()})
    (row,) = csv.DictReader(io.StringIO(csv_text(table)))
    assert row == {name: text for name, (_, text, _) in VALUES.items()}
    assert json_lines(table) == [{name: value for name, (_, _, value) in VALUES.items()}]


def test_csv_of_one_column_keeps_rows_that_are_null(tmp_path: Path) -> None:
    for values in (["x\n\ny", None, None, "z"], [None, 1.5, None]):
        content = csv_text(pa.table({"a": values}))
        (tmp_path / "a.csv").write_text(content)
        rows = [row["a"] for row in csv.DictReader(io.StringIO(content))]
        assert [str(value or "") for value in values] == rows
        assert len(pd.read_csv(tmp_path / "a.csv")) == len(values)
        assert len(read_files("csv", tmp_path / "a.csv").good) == len(values)
        form = rewriting_writer_for(write_of("csv"))
        assert form.write([form.read(content.encode())]).decode() == content


LONG = pa.array(["1234567890123456789012345678.5", None, "0.2"])
UNSIGNED = pa.array([2**64 - 1, None, 0], pa.uint64())


def read_back(write: Any, table: pa.Table) -> pa.Table:
    ((extension, content),) = writer_for(write).files(table)
    Path(write.path, f"a{extension}").write_bytes(content)
    return all_rows(write)


def test_csv_values_that_a_float_would_change_are_read_back(tmp_path: Path) -> None:
    reals, late = [math.nan, -math.inf, None], [dt.datetime(2500, 1, 1, tzinfo=dt.UTC), None, None]
    expected = pa.table({"big": UNSIGNED, "long": LONG, "real": reals, "late": late})
    table = expected.set_column(1, "long", LONG.cast(pa.decimal128(38, 1)))
    for names in (table.column_names, ["big"]):
        back = read_back(write_of("csv", tmp_path), table.select(names))
        assert str(back.to_pylist()) == str(expected.select(names).to_pylist())
    (tmp_path / "a.csv").write_text("a,b\n1,2,3\n4\n")
    with pytest.raises(BadOutput):
        all_rows(write_of("csv", tmp_path))


def test_json_values_that_have_no_arrow_type_are_read_back_as_json(tmp_path: Path) -> None:
    pairs = pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64()))
    back = read_back(write_of("json", tmp_path), pa.table({"big": UNSIGNED, "pairs": pairs}))
    assert back.column("big").to_pylist() == UNSIGNED.to_pylist()
    assert back.column("pairs").to_pylist() == ['[["k", 1]]', "[]", None]


def test_parquet_files_of_different_types_are_read_as_one_table(tmp_path: Path) -> None:
    for number, value in enumerate((Decimal("99.99"), 99.99, 99)):
        pq.write_table(pa.table({"x": [value]}), tmp_path / f"{number}.parquet")
    assert all_rows(write_of("parquet", tmp_path)).column("x").to_pylist() == [99.99, 99.99, 99]


def test_parquet_writes_structs_without_fields_as_text() -> None:
    empty = pa.struct([])
    kinds = empty, pa.list_(empty), pa.large_list(empty), pa.map_(pa.string(), empty)
    values = [{}, None], [[{}], []], [[{}], None], [[("k", {})], None]
    table = pa.table(list(map(pa.array, values, kinds)), list("abcd"))
    texts = [["{}", None], [["{}"], []], [["{}"], None], ['[["k", {}]]', None]]
    assert list(parquet(table).read().to_pydict().values()) == texts


WRITES = {
    ".parquet": WriteParquet(format="parquet", path="/out"),
    ".jsonl": WriteJson(format="json", path="/out"),
    ".jsonl.gz": WriteJson(format="json", path="/out", compression="gzip"),
}


def test_files_are_read_back_for_a_rewrite_without_a_change() -> None:
    table = everything().append_column('"a", b', [["", "null"]])
    assert rewriting_writer_for(write_of("webdataset")) is None
    for write in (write_of("json", compression="gzip"), write_of("csv", delimiter="\t")):
        form = replace(rewriting_writer_for(write), text_bytes=10)  # type: ignore[type-var]
        content = encoded(writer_for(write), table)
        assert form.write([form.read(content)]) == content, write.format


def test_output_is_deterministic_and_named_by_its_format() -> None:
    for ending, write in WRITES.items():
        writer = writer_for(write)
        ((extension, _),) = writer.files(everything())
        assert extension == ending
        assert encoded(writer, everything()) == encoded(writer, everything()), ending


def test_json_writes_nan_and_infinity_as_null() -> None:
    floats = [float("nan"), float("inf"), -float("inf"), 1.5]
    table = pa.table(
        {"x": floats, "list": [floats] * 4, "struct": [{"y": value} for value in floats],
         "tensor": to_column(np.array([[value, 2.0] for value in floats])),
         "map": pa.array([[("k", value)] for value in floats], pa.map_(pa.string(), pa.float64()))}
    )  # fmt: skip
    for row, value in zip(json_lines(table), floats, strict=True):
        kept = value if math.isfinite(value) else None
        assert row == {
            **{"x": kept, "list": [None, None, None, 1.5], "struct": {"y": kept}},
            **{"tensor": [kept, 2.0], "map": [["k", kept]]},
        }


TENSORS: dict[str, Any] = {
    "vectors": np.arange(6, dtype=np.float32).reshape(2, 3),
    "images": np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3),
    "flags": np.array([[True], [False]]),
    "halves": np.array([[0.5], [1.5]], dtype=np.float16),
    "texts": np.array([["a", "bc"], ["d", ""]]),
    "empty tensors": np.zeros((2, 0)),
    "several sizes": [np.ones((1, 2), np.uint8), np.zeros((3, 2), np.uint8)],
    "one empty tensor": [np.ones((0, 2)), np.zeros((3, 2))],
}


@pytest.mark.parametrize("values", TENSORS.values(), ids=TENSORS)
def test_tensors_become_lists_or_null(values: Any) -> None:
    part, without = pa.table({"t": to_column(values)}), pa.table({"other": [1]})
    lists = [np.asarray(value).tolist() for value in values]
    assert parquet(part).read().column("t").to_pylist() == lists
    assert [row["t"] for row in json_lines(part)] == lists
    for table, expected in (
        (concat([part, without]), [*lists, None]),
        (concat([without, part, without]), [None, *lists, None]),
        (concat([part, without]).take([2, 1, 2]), [None, lists[1], None]),
        (concat([part, without]).slice(2), [None]),
        (part.slice(1), lists[1:]),
        (part.slice(0, 0), []),
    ):
        assert tensors_to_lists(table).column("t").to_pylist() == expected


@pytest.mark.parametrize(("format_", "kind"), [("parquet", "FLOAT[]"), ("json", "DOUBLE[]")])
def test_duckdb_reads_embeddings_as_lists(format_: str, kind: str, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(20, 384)).astype(np.float32)
    vectors[1] = vectors[0]
    of_tokens = vectors.reshape(20, 4, 96)
    columns = {"embedding": to_column(vectors), "tokens": to_column(of_tokens)}
    table = pa.table({"id": range(20), **columns})
    (tmp_path / f"a.{format_}").write_bytes(encoded(writer_for(write_of(format_)), table))
    with duckdb.connect() as database:
        rows = f"(SELECT * FROM read_{format_}('{tmp_path}/*.{format_}') ORDER BY id)"
        types = database.sql(f"SELECT typeof(embedding), typeof(tokens) FROM {rows}").fetchall()
        result = database.sql(f"SELECT embedding, tokens FROM {rows}").fetchall()
        nearest = database.sql(
            f"SELECT a.id FROM {rows} a, {rows} b WHERE b.id = 1 AND a.id != 1 "
            "ORDER BY list_cosine_similarity(a.embedding, b.embedding) DESC LIMIT 1"
        ).fetchall()
    assert set(types) == {(kind, f"{kind}[]")}
    assert np.array_equal(np.array([first for first, _ in result], np.float32), vectors)
    assert np.array_equal(np.array([second for _, second in result], np.float32), of_tokens)
    assert nearest == [(0,)]


def test_tensor_elements_keep_their_type_and_shape() -> None:
    for dtype in ("uint8", "int64", "float32", "float64", "bool"):
        for shapes in (((2, 2), (1, 2)), ((2, 2), (2, 2))):
            column = to_column([np.ones(shape, dtype) for shape in shapes])
            kind = tensors_to_lists(pa.table({"t": column})).schema.field("t").type
            assert kind == pa.list_(pa.list_(pa.from_numpy_dtype(dtype)))
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    table = pa.table({"t": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
    assert tensors_to_lists(table).column("t").to_pylist() == values.tolist()
    assert tensors_to_lists(everything()).equals(everything())


HALF = np.array([[0.5, 2], [3, 4]], np.float16)
HALVES = [
    *(to_column(HALF), to_column([HALF[0], HALF[1, :1]]), pa.array(HALF[0])),
    pa.array([HALF[0].tolist(), None], pa.list_(pa.float16())),
    pa.array([HALF[0].tolist(), None], pa.large_list(pa.float16())),
    pa.array(HALF.tolist(), pa.list_(pa.float16(), 2)),
    pa.array([{"a": {"b": [0.5]}}, None],
             pa.struct({"a": pa.struct({"b": pa.list_(pa.float16())})})),
]  # fmt: skip


@pytest.mark.parametrize("column", HALVES, ids=lambda column: str(column.type)[:30])
def test_float16_is_widened_for_spark(column: pa.Array) -> None:
    table = pa.table({"c": column})
    written = parquet(table).read()
    assert "halffloat" not in str(written.schema)
    assert "float" in str(written.schema)
    assert np.array_equal(np.ravel(written.column("c").to_pylist()[0]),
                          np.ravel(table.column("c").to_pylist()[0]))  # fmt: skip


def test_large_tensors_are_converted_in_parts() -> None:
    ragged = [np.arange(number * 2).reshape(number, 2) for number in range(9)]
    for limit in (1, 7, 50, 1000):
        for values in (np.arange(60).reshape(10, 3, 2), ragged):
            column = tensors_to_lists(pa.table({"t": to_column(values)}), limit).column("t")
            assert column.to_pylist() == [value.tolist() for value in values], limit
            assert (column.num_chunks > 1) == (limit < 500), limit


@settings(max_examples=examples(60), deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "text": st.none() | st.text(),
                "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
                "real": st.none() | st.floats(),
                "texts": st.none() | st.lists(st.text(max_size=3), max_size=3),
            }
        ),
        min_size=1,
        max_size=8,
    ),
    compression=st.sampled_from(["none", "gzip"]),
)
def test_any_rows_are_read_back(rows: list[dict[str, Any]], compression: str) -> None:
    schema = pa.schema([("text", pa.string()), ("whole", pa.int64()), ("real", pa.float64()),
                        ("texts", pa.list_(pa.string()))])  # fmt: skip
    table = pa.Table.from_pylist(rows, schema)
    values = parquet(table).read().to_pylist()
    assert str(values) == str(table.to_pylist())  # as text, because nan is not equal to nan
    finite = [row["real"] is not None and math.isfinite(row["real"]) for row in rows]
    assert json_lines(table, compression) == [
        row | {"real": row["real"] if known else None}
        for row, known in zip(rows, finite, strict=True)
    ]


@pytest.mark.parametrize("ending", WRITES)
def test_first_rows_of_an_output_are_shown(ending: str, tmp_path: Path) -> None:
    chosen = WRITES[ending].model_copy(update={"path": str(tmp_path)})
    for name, start in (("part-b", 3), ("part-a", 0)):
        table = pa.table({"n": [start, start + 1, start + 2], "t": ["a\u2028b"] * 3})
        for extension, content in writer_for(chosen).files(table):
            (tmp_path / f"{name}{extension}").write_bytes(content)
    for other in ("_SUCCESS", "_batchinference/report.json", ".part-c.tmp"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_text("no rows")
    assert [row["n"] for row in first_rows(chosen, 4)] == [0, 1, 2, 3]
    assert first_rows(chosen, 1) == [{"n": 0, "t": "a\u2028b"}]
    assert len(first_rows(chosen, 100)) == 6


TABLE = pa.table(
    {"n": range(7), "kind": ["b", "a", "b", None, "a b/c", "b", "a"], "flag": [True] * 7}
)


def test_rows_are_divided_into_files_and_hive_directories() -> None:
    for cut, expected in (
        (FileSplit(), [("", list(range(7)))]),
        (FileSplit(rows_per_file=3), [("", [0, 1, 2]), ("", [3, 4, 5]), ("", [6])]),
        (FileSplit(("n",), ("flag",), 5), [("flag=true", [0, 1, 2, 3, 4]), ("flag=true", [5, 6])]),
        (
            FileSplit(partition_by=("kind",)),
            [
                *(("kind=b", [0, 2, 5]), ("kind=a", [1, 6])),
                *(("kind=__HIVE_DEFAULT_PARTITION__", [3]), ("kind=a b%2Fc", [4])),
            ],
        ),
    ):
        pairs = [(folder, part.column("n").to_pylist()) for folder, part in cut.split(TABLE)]
        assert pairs == expected, cut


def test_columns_are_written_in_the_given_order() -> None:
    for columns, partition_by in ((("kind", "n"), ()), (("n",), ("flag",))):
        ((_, part),) = FileSplit(columns, partition_by).split(TABLE)
        assert part.column_names == [*columns]


def test_part_of_a_column_names_directories() -> None:
    labels = pa.array([{"label": "a"}, None, {"label": "b"}, {"label": "a"}])
    table = pa.table({"o": labels, "n": range(4)})
    files = list(FileSplit(partition_by=("o.label",)).split(table))
    assert {folder: part["n"].to_pylist() for folder, part in files} == {
        "o.label=a": [0, 3],
        f"o.label={NULL_DIRECTORY}": [1],
        "o.label=b": [2],
    }
    assert {tuple(part.column_names) for _, part in files} == {("o", "n")}
    literal = pa.table({"o": labels, "o.label": ["x"] * 4})
    folders = [folder for folder, _ in FileSplit(partition_by=("o.label",)).split(literal)]
    assert folders == ["o.label=x"]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.dictionary(pa.int8(), pa.large_string())], ids=str
)
def test_texts_are_noticed_that_name_the_partition_of_null(kind: pa.DataType) -> None:
    table = pa.table({"kind": pa.array(["a", None, NULL_DIRECTORY], kind), "n": [1, 2, 3]})
    assert [*FileSplit(partition_by=("n", "kind")).null_names(table)] == [2]
    assert [*FileSplit().null_names(table)] == []


def test_pyarrow_reads_the_partitions(tmp_path: Any) -> None:
    files = FileSplit(partition_by=("kind", "flag")).split(TABLE)
    for number, (directory, part) in enumerate(files):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
        ((ending, content),) = ParquetWriter("snappy").files(part)
        (tmp_path / directory / f"{number}{ending}").write_bytes(content)
    read = pads.dataset(tmp_path, partitioning="hive").to_table().sort_by("n")
    assert read.column("n").to_pylist() == list(range(7))
    assert read.column("kind").to_pylist() == TABLE.column("kind").to_pylist()


@pytest.mark.parametrize(
    "cut",
    [
        FileSplit(("m",), fields={"m": "columns"}),
        FileSplit(partition_by=("m",), fields={"m": "partitionBy"}),
        FileSplit(partition_by=("lists",)),
    ],
    ids=short,
)
def test_unusable_columns_are_named(cut: FileSplit, messages: Messages) -> None:
    table = TABLE if cut.partition_by != ("lists",) else TABLE.append_column("lists", [[[1]] * 7])
    with messages.raises(JobFailure):
        list(cut.split(table))


def test_long_values_are_shortened_to_directories_that_differ() -> None:
    values = ["x" * 250, "x" * 251, "x" * 5000, "x" * 5000 + "y", "ü" * 300, "%" * 300]
    table = pa.table({"n": range(len(values)), "kind": values})
    folders = [folder for folder, _ in partitions(table, ("kind",))]
    assert folders[0] == f"kind={'x' * 250}"
    assert len({*folders}) == len(values)
    assert max(map(len, folders)) <= 255
    assert all(unquote(folder).isprintable() and "%~" not in folder for folder in folders)
    assert folders == [folder for folder, _ in partitions(table, ("kind",))]


def test_value_that_only_a_directory_has_must_fit_its_name(messages: Messages) -> None:
    kinds = ["x" * 250, None, "x" * 252, "ü" * 41, "ü" * 42]
    table = pa.table({"kind": kinds, "o": [{"k": kind} for kind in kinds], "n": range(5)})
    by_kind, by_part = FileSplit(partition_by=("kind",)), FileSplit(partition_by=("o.k",))
    for split in (by_kind, replace(by_part, columns=("n",))):
        assert [*split.unwritable(table)] == [2, 4]
        with messages.raises(UnwritableValue):
            list(split.split(table))
    assert by_part.unwritable(table) == {}  # the files have the struct
    folders = [folder for folder, _ in by_kind.split(table.take([0, 1, 3]))]
    read = [partition_values(f"{folder}/a.parquet")["kind"] for folder in folders]
    assert read == ["x" * 250, None, "ü" * 41]


@pytest.mark.parametrize("names", [("kind", "Kind"), ("n", "kind", "Kind")], ids=str)
def test_partition_column_must_differ_from_others_not_only_in_case(
    names: tuple[str, ...], messages: Messages
) -> None:
    """Libraries that ignore case would read the partition in place of the column of the files."""
    table = pa.table({"Kind": [1], "kind": ["a"], "n": [1]})
    with messages.raises(JobFailure):
        list(FileSplit(partition_by=("kind",)).split(table))
    with messages.raises(JobFailure):
        list(FileSplit(partition_by=names).split(table))
    assert list(FileSplit(("n",), ("kind",)).split(table))


def test_column_with_too_long_a_name_cannot_be_a_directory(messages: Messages) -> None:
    name = "ü" * 128
    with messages.raises(JobFailure):
        list(FileSplit(partition_by=(name,)).split(pa.table({"n": [1], name: ["a"]})))
