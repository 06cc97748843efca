"""Archives of WebDataset, lines of JSON that are no objects, and outputs without rows."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from traps import product
from traps.case import Case, Cases, Outcome, Refused, Right, Row
from traps.inputs import lines, packed, tar
from traps.pictures import BLUE, picture
from traps.yaml_cases import read_kinds

CASES = Cases("containers")
JPG = picture(kind="JPEG")
BLUE_JPG = picture(BLUE, "JPEG")


def sample(row: Row) -> Row:
    """Return the key and the values of a sample, with pictures as their first pixel."""
    return {
        name.removeprefix(".").lower(): _shown(value)
        for name, value in row.items()
        if name not in ("__url__", "path") and value is not None
    }


def _shown(value: Any) -> Any:
    if isinstance(value, bytes):
        value = _decoded(value)
    if hasattr(value, "convert") or np.ndim(value) == 3:
        return np.asarray(value)[0, 0].tolist()
    return value.decode() if isinstance(value, bytes) else value


def _decoded(value: bytes) -> Any:
    """Return bytes of a member that a tool leaves undecoded as what they are."""
    if value[:2] == b"\xff\xd8":
        return np.asarray(Image.open(io.BytesIO(value)).convert("RGB"))
    return value


def key(row: Row) -> Row:
    """Return the key of a sample, and its members without pixels."""
    shown = sample(row)
    return {name: "picture" if isinstance(shown[name], list) else shown[name] for name in shown}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def samples(*keys: str, **members: Any) -> list[Row]:
    return [{"__key__": key, "jpg": "picture", **members} for key in keys]


archives = {"read": {"format": "webdataset"}, "view": key}
apart = CASES.kind("R24", "members of a sample that are not adjacent in an archive", **archives)
apart(
    "first all pictures, then all texts",
    Right([*samples("0", txt="a"), *samples("1", txt="b")]),
    files={"a.tar": tar([("0.jpg", JPG), ("1.jpg", JPG), ("0.txt", "a"), ("1.txt", "b")])},
)
apart(
    "the same, packed with gzip",
    Right([*samples("0", txt="a"), *samples("1", txt="b")]),
    files={
        "a.tar.gz": packed(tar([("0.jpg", JPG), ("1.jpg", JPG), ("0.txt", "a"), ("1.txt", "b")]))
    },
    peers={"daft": {"pattern": "*"}, "datasets": {"data_files": ["*.tar.gz"]}},
)
apart(
    "one sample of many is divided",
    Right([*samples("0", txt="a"), *samples("1", txt="b"), *samples("2", txt="c")]),
    files={
        "a.tar": tar(
            [
                *(("0.jpg", JPG), ("1.jpg", JPG), ("1.txt", "b")),
                *(("2.jpg", JPG), ("2.txt", "c"), ("0.txt", "a")),
            ]
        )
    },
)
apart(
    "equal names in two directories",
    Right([*samples("x/0", txt="a"), *samples("y/0", txt="b")]),
    files={"a.tar": tar([("x/0.jpg", JPG), ("y/0.jpg", JPG), ("x/0.txt", "a"), ("y/0.txt", "b")])},
)
apart(
    "a member that is in the archive twice",
    Right([], failed=1, says="0.txt|twice|txt"),
    Refused("txt"),
    files={"a.tar": tar([("0.jpg", JPG), ("0.txt", "a"), ("0.txt", "b")])},
)
apart(
    "a sample that is divided over two archives",
    Right([{"__key__": "0", "jpg": "picture"}, {"__key__": "0", "txt": "a"}]),
    files={"a.tar": tar([("0.jpg", JPG)]), "b.tar": tar([("0.txt", "a")])},
)

apart(
    "names with and without ./",
    Right(samples("0", txt="a")),
    files={"a.tar": tar([("./0.jpg", JPG), ("0.txt", "a")])},
)
apart(
    "extensions in small and capital letters",
    Right(samples("0", txt="a")),
    files={"a.tar": tar([("0.JPG", JPG), ("0.txt", "a")])},
)
apart(
    "10,000 pictures before their texts",
    Right([{"__key__": str(n), "a": "x", "b": "y"} for n in range(10_000)]),
    view=lambda row: {name: _text(row[name]) for name in ("__key__", "a", "b")},
    files={
        "a.tar": tar(
            [(f"{n}.a", "x") for n in range(10_000)] + [(f"{n}.b", "y") for n in range(10_000)]
        )
    },
    peers={},
)


read_kinds(CASES, Path(__file__).with_suffix(".yaml"))

labels = CASES.kind("R30", "labels that are texts, and files of macOS in an archive", **archives)
labels(
    "a label cat, and __MACOSX",
    Right(samples("0", cls="cat"), warnings={"MembersIgnored": 1}),
    files={"a.tar": tar([("0.jpg", JPG), ("0.cls", "cat"), ("__MACOSX/._1.jpg", b"x")])},
)
labels(
    "AppleDouble files in each directory",
    Right(samples("x/0"), warnings={"MembersIgnored": 1}),
    files={
        "a.tar": tar(
            [*((name, b"\0\5\x16\7") for name in ("._x", "./._x", "x/._0.jpg")), ("x/0.jpg", JPG)]
        )
    },
)
labels(
    "numbers and texts as labels",
    Right([*samples("0", cls="0"), *samples("1", cls="cat")]),
    files={"a.tar": tar([("0.jpg", JPG), ("0.cls", "0"), ("1.jpg", JPG), ("1.cls", "cat")])},
    view=lambda row: {**key(row), "cls": str(key(row)["cls"])},
)
MANY = [(str(n), str(n) if n < 1500 else "cat") for n in range(1501)]
labels(
    "a text as the label of the last of 1,501 samples",
    Right([{"__key__": name, "cls": label} for name, label in MANY]),
    view=lambda row: {"__key__": row["__key__"], "cls": str(key(row).get("cls"))},
    files={"a.tar": tar([(f"{name}.cls", label) for name, label in MANY])},
)
labels(
    "labels in capitals, and with a line break",
    Right([*samples("0", cls=3), *samples("1", cls=-1)]),
    files={"a.tar": tar([("0.JPG", JPG), ("0.CLS", "3\n"), ("1.JPG", JPG), ("1.CLS", " -1 ")])},
)
labels(
    "a picture whose extension is wrong",
    Right(samples("0")),
    files={"a.tar": tar([("0.jpg", picture(kind="PNG"))])},
)
labels(
    "names with several dots",
    Right([{"__key__": "a", "left.jpg": "picture", "right.jpg": "picture", "cls": "b"}]),
    files={"a.tar": tar([("a.left.jpg", JPG), ("a.right.jpg", BLUE_JPG), ("a.cls", "b")])},
)
labels(
    "a damaged picture beside its label",
    Right(samples("1", cls="b"), failed=1, says="jpg|0"),
    files={
        "a.tar": tar([("0.jpg", b"\xff\xd8broken"), ("0.cls", "a"), ("1.jpg", JPG), ("1.cls", "b")])
    },
)
labels(
    "an archive that ends within a member",
    Right(samples("0"), failed=1, says="tar|end|truncated|damaged"),
    files={"a.tar": lambda: tar([("0.jpg", JPG), ("1.jpg", JPG)])()[:2100]},
)


def output_columns(read: Callable[[Path], Row]) -> Any:
    """Return a function that runs a case and reads the columns of its output with a library."""

    def runs(case: Case, directory: Path, run: product.Run) -> Outcome:
        outcome = product.run_job(case, directory, run)
        if outcome.error:
            return outcome
        try:
            rows = read(directory / "out")
        except Exception as error:  # noqa: BLE001 - any error means that the reader cannot read it
            rows = {"unreadable": str(error)}
        return replace(outcome, rows=[rows])

    return runs


def _pandas(out: Path) -> Row:
    import pandas as pd

    frame = pd.read_parquet(out)
    return {"columns": list(frame.columns), "rows": len(frame)}


def _duckdb(out: Path) -> Row:
    import duckdb

    rows = duckdb.sql(f"SELECT * FROM read_parquet('{out}/*.parquet')")
    return {"columns": rows.columns, "rows": len(rows.fetchall())}


def _csv(out: Path) -> Row:
    import pandas as pd

    (file,) = out.glob("*.csv")
    frame = pd.read_csv(file)
    return {"columns": list(frame.columns), "rows": len(frame)}


def _delta(out: Path) -> Row:
    import deltalake

    table = deltalake.DeltaTable(str(out)).to_pyarrow_table()
    return {"columns": table.column_names, "rows": table.num_rows}


A_AND_B = lines({"a": 1, "b": "x"})
NONE_LEFT = [{"name": "none", "filter": "a > 100"}]


def _ray_empty(directory: Path) -> list[Row]:
    import ray.data

    out = directory / "ray"
    rows = ray.data.read_json(str(directory / "in"), lines=True)
    rows.filter(expr="a > 100").write_parquet(str(out))
    return [_pandas(out)]


def _daft_empty(directory: Path) -> list[Row]:
    import daft

    out = directory / "daft"
    daft.read_json(f"{directory}/in/*.jsonl").where(daft.col("a") > 100).write_parquet(str(out))
    return [_pandas(out)]


def _datasets_empty(directory: Path) -> list[Row]:
    from traps.peers import with_datasets

    out = directory / "datasets.parquet"
    result = with_datasets.load("json", directory).filter(lambda row: row["a"] > 100)
    result.to_parquet(str(out))
    return [_pandas(out)]


def _pandas_empty(directory: Path) -> list[Row]:
    import pandas as pd

    frame = pd.read_json(directory / "in/a.jsonl", lines=True)
    frame[frame.a > 100].to_parquet(directory / "pandas.parquet")
    return [_pandas(directory / "pandas.parquet")]


NO_PEERS = dict.fromkeys(("ray", "daft", "datasets", "pandas"), "not compared")
EMPTY_PEERS = {
    "ray": _ray_empty,
    "daft": _daft_empty,
    "datasets": _datasets_empty,
    "pandas": _pandas_empty,
}
COLUMNS = Right([{"columns": ["a", "b"], "rows": 0}])
empty = CASES.kind(
    "R19",
    "outputs without rows",
    read={"format": "json"},
    files={"a.jsonl": A_AND_B},
    steps=NONE_LEFT,
    peers=NO_PEERS,
)
empty(
    "no row is left: Parquet, read by pandas",
    COLUMNS,
    runs=output_columns(_pandas),
    peers=EMPTY_PEERS,
)
empty("no row is left: Parquet, read by DuckDB", COLUMNS, runs=output_columns(_duckdb))
empty("no row is left: CSV", COLUMNS, output={"format": "csv"}, runs=output_columns(_csv))
empty(
    "no row is left: a Delta table",
    COLUMNS,
    output={"format": "delta"},
    runs=output_columns(_delta),
)
