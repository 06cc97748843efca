"""The types of columns: what is inferred, what is declared, and names that clash."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from traps import views
from traps.case import Cases, Refused, Right, Row
from traps.inputs import lines, packed, parquet
from traps.yaml_cases import read_kinds

CASES = Cases("types")
ADD = read_kinds(CASES, Path(__file__).with_suffix(".yaml"))
"""The functions that add further cases to the kinds of the file."""
naive = dt.datetime.fromisoformat
TEXT, PARTS = (
    "Answer briefly.",
    [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
    ],
)
DAY = naive("2024-01-01")


def chat(*contents: Any, **fields: Any) -> Row:
    return {"messages": [{"role": "user", "content": content} for content in contents], **fields}


mixed = CASES.kind(
    "R03",
    "JSON fields with several shapes",
    read={"format": "json"},
    view=views.without_nulls,
    peers={"ray": {"lines": True}},
)
OPENAI = [chat(TEXT, PARTS, custom_id="1")]
mixed(
    "messages whose content is a text or a list of parts",
    Right(OPENAI),
    files={"a.jsonl": lines(*OPENAI)},
)
POST = {"method": "POST", "url": "/v1/chat/completions"}
BODIES = [
    {"custom_id": name, **POST, "body": {"model": "m", **chat(content)}}
    for name, content in (("1", TEXT), ("2", PARTS))
]
mixed(
    "a batch file of OpenAI: one request with a text, the next with parts",
    Right(BODIES),
    files={"a.jsonl": lines(*BODIES)},
)
TOOLS = [chat("hi"), chat(None), chat(PARTS)]
mixed(
    "a content that is also null",
    Right([views.without_nulls(row) for row in TOOLS]),
    files={"a.jsonl": lines(*TOOLS)},
)
mixed(
    "messages that are declared as JSON",
    Right(OPENAI),
    options={"types": {"messages": "json"}},
    files={"a.jsonl": lines(*OPENAI)},
    peers={"datasets": {"on_mixed_types": "use_json"}},
)
SHAPES = [{"v": 1}, {"v": "a"}, {"v": [1]}, {"v": {"b": 2}}, {"v": True}, {"v": None}, {}]


def shaped(row: Row) -> Row:
    """Return a value as JSON, if it is no text, to compare what a text of JSON stands for."""
    value = row.get("v")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            pass
    return {"v": value}


mixed(
    "a number, a text, a list, an object, a truth value and null",
    Right([{"v": row.get("v")} for row in SHAPES]),
    files={"a.jsonl": lines(*SHAPES)},
    view=shaped,
)
NESTED = [{"id": n, "meta": {"tags": ["a"] if n % 2 else "a", "n": n}} for n in range(4)]
mixed(
    "a field of an object that is a text or a list",
    Right(NESTED),
    files={"a.jsonl": lines(*NESTED)},
)
LATE = [{"id": n} for n in range(2000)] + [{"id": 2000, "v": {"a": 1}}, {"id": 2001, "v": "text"}]
mixed(
    "2,000 nulls, then an object and a text",
    Right(LATE),
    files={"a.jsonl": lines(*({"v": None, **row} for row in LATE))},
)
ONLY_STRINGS = [{"v": "[1]"}, {"v": "{}"}, {"v": "null"}, {"v": "1"}, {"v": "true"}, {"v": '"'}]
mixed(
    "texts that look like JSON stay texts",
    Right(ONLY_STRINGS),
    files={"a.jsonl": lines(*ONLY_STRINGS)},
    view=None,
)

STRINGS = {"zip": "string", "ean": "string"}
zeros = ADD["R04"]
ZIPS = [
    {"zip": "00501", "ean": "0049301", "name": "a"},
    {"zip": "02134", "ean": "0012345", "name": "b"},
]
ZIP_FILE = 'zip,ean,name\n00501,"0049301",a\n02134,"0012345",b\n'


def _types(**columns: str) -> Any:
    """Return the options with which each tool reads columns as these types of Arrow."""
    return {name: getattr(pa, kind)() for name, kind in columns.items()}


def declared_texts(*names: str, also: Sequence[str] = ()) -> dict[str, Any]:
    """Return how users of the other tools read columns as texts. `also` are the other columns."""

    def ray(at: Path) -> list[Row]:
        from traps.peers import with_ray

        return with_ray.read_csv(
            at,
            convert_options=csv.ConvertOptions(
                column_types=_types(**dict.fromkeys(names, "string"))
            ),
        )

    def daft(at: Path) -> list[Row]:
        import daft as d

        from traps.peers import with_daft

        return with_daft.read_csv(at, "*.csv", schema=dict.fromkeys(names, d.DataType.string()))

    texts = dict.fromkeys(names, "str")
    return {
        "ray": ray,
        "daft": daft,
        "pandas": {"dtype": texts},
        "datasets": {"texts": [*names, *also]},
    }


zeros(
    "zip codes that are declared as texts",
    Right(ZIPS),
    files={"a.csv": ZIP_FILE},
    options={"types": STRINGS},
    peers=declared_texts("zip", "ean", also=["name"]),
)
CODES = [*(str(10_000 + n) for n in range(1500)), "00501"]
PADDING = "x" * 1000
"""A text that makes a file longer than the sample from which types are inferred."""
zeros(
    "the first leading zero after 1.5 MB of other codes",
    Right([{"zip": code, "t": PADDING} for code in CODES]),
    Right([{"zip": code if code[0] == "0" else int(code), "t": PADDING} for code in CODES]),
    files={"a.csv": "zip,t\n" + "".join(f"{code},{PADDING}\n" for code in CODES)},
)
zeros(
    "the same in the last of 40 files",
    Right([{"zip": code} for code in (*CODES[:39], "00501")]),
    Right([{"zip": code} for code in (*map(int, CODES[:39]), "00501")]),
    files={f"{n:02}.csv": f"zip\n{CODES[n] if n < 39 else '00501'}\n" for n in range(40)},
)
PARTS_NUMBERS = ["12E3", "4E10", "1e5"]
zeros(
    "such part numbers, declared as texts",
    Right([{"part": part} for part in PARTS_NUMBERS]),
    options={"types": {"part": "string"}},
    files={"a.csv": "part\n" + "\n".join(PARTS_NUMBERS) + "\n"},
    peers=declared_texts("part"),
)
ACCOUNT = 9_007_199_254_740_993
zeros(
    "integers above 2^53 beside a fraction",
    Right([{"id": str(ACCOUNT)}, {"id": "0.5"}]),
    Right([{"id": ACCOUNT}, {"id": Decimal("0.5")}]),
    Refused("id|9007199254740993"),
    files={"a.csv": f"id\n{ACCOUNT}\n0.5\n"},
)
FAR = [naive("9999-12-31T23:59:59"), naive("1500-01-01"), DAY]
INT96 = {"use_deprecated_int96_timestamps": True, "store_schema": False}


MOMENT = pa.timestamp("us")


def days(*values: Any) -> Any:
    return {"t": pa.array(values, MOMENT)}


int96 = CASES.kind("R06", "dates of INT96", read={"format": "parquet"})
int96(
    "the years 1500, 2024 and 9999",
    Right([{"t": day} for day in FAR]),
    files={"a.parquet": parquet(days(*FAR), **INT96)},
)
EDGES = [
    *map(naive, ("0001-01-01", "1677-09-21", "2262-04-12", "0001-01-01T00:00:00.000001")),
    None,
]
int96(
    "the same with the option for microseconds of the other tools",
    Right([{"t": day} for day in FAR]),
    files={"a.parquet": parquet(days(*FAR), **INT96)},
    peers={
        "ray": {"dataset_kwargs": {"coerce_int96_timestamp_unit": "us"}},
        "daft": {"coerce_int96_timestamp_unit": "us"},
        "datasets": "no such option",
        "pandas": {"coerce_int96_timestamp_unit": "us"},
    },
)


int96(
    "the edges of 64 bits, the year 1 and null",
    Right([{"t": day} for day in EDGES]),
    files={"a.parquet": parquet(days(*EDGES), **INT96)},
)
STRUCT = {"t": FAR[0], "l": [FAR[1], DAY]}
STRUCTS = pa.array([STRUCT], pa.struct([("t", MOMENT), ("l", pa.list_(MOMENT))]))
int96(
    "dates in a struct and a list",
    Right([{"s": STRUCT}]),
    files={"a.parquet": parquet({"s": STRUCTS}, **INT96)},
)
NANOSECONDS = pa.array([1_700_000_000_123_456_789], pa.timestamp("ns"))


def microseconds(row: Row) -> Row:
    """Return a time without its zone and nanoseconds, which Python's times lack."""
    value = row["t"]
    if hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime(warn=False)
    return {"t": value.replace(tzinfo=None)}


SECOND = naive("2023-11-14T22:13:20.123456")
int96(
    "a recent time with nanoseconds",
    Right([{"t": SECOND}]),
    Right([], failed=1, says="nanosecond"),
    view=microseconds,
    files={"a.parquet": parquet({"t": NANOSECONDS}, **INT96)},
)
int96(
    "a file with INT96 beside one with timestamps of microseconds",
    Right([{"t": FAR[0]}, {"t": FAR[1]}]),
    files={"a.parquet": parquet(days(FAR[0]), **INT96), "b.parquet": parquet(days(FAR[1]))},
)
int96(
    "several row groups, with null first",
    Right([{"t": None}, {"t": None}, {"t": FAR[0]}, {"t": DAY}]),
    files={"a.parquet": parquet(days(None, None, FAR[0], DAY), row_group_size=2, **INT96)},
)
YEAR_10000 = pa.array([253_402_300_800_000, 0]).cast(pa.timestamp("ms"))
int96(
    "the year 10000 in milliseconds, which Python lacks",
    Right([{"t": naive("1970-01-01")}], failed=1, says="10000|9999|year|range|253402300800000"),
    Right(holds=lambda rows: sorted(str(row["t"])[:5] for row in rows) == ["10000", "1970-"]),
    files={"a.parquet": parquet({"t": YEAR_10000}, store_schema=False)},
)

late = CASES.kind(
    "R08",
    "another type in a later file or row",
    read={"format": "csv"},
    peers={"daft": {"pattern": "*.csv"}, "ray": {}},
)
IDS = [{"id": "A12" if n == 33 else str(n), "text": "x"} for n in range(40)]
ID_FILES = {f"{n:02}.csv": f"id,text\n{row['id']},x\n" for n, row in enumerate(IDS)}
MIXED_IDS = [{**row, "id": int(row["id"])} if row["id"].isdecimal() else row for row in IDS]
"""Each value with its own type, as tools do without a type for the column."""
late("one of 40 CSV files has a text", Right(IDS), Right(MIXED_IDS), files=ID_FILES)
late(
    "the same with the column declared as text",
    Right(IDS),
    options={"types": {"id": "string"}},
    files=ID_FILES,
    peers=declared_texts("id", also=["text"]),
)
late(
    "one of 40 JSON files has a text",
    Right([{"id": "A12" if n == 33 else n} for n in range(40)]),
    Right([{"id": "A12" if n == 33 else str(n)} for n in range(40)]),
    read={"format": "json"},
    files={f"{n:02}.jsonl": lines({"id": "A12" if n == 33 else n}) for n in range(40)},
    peers={"daft": {}, "ray": {"lines": True}},
)
late(
    "null in 39 JSON files, an object in the last",
    Right([{"v": None}] * 39 + [{"v": {"a": 1}}]),
    read={"format": "json"},
    view=views.json_texts,
    files={f"{n:02}.jsonl": lines({"v": {"a": 1} if n == 39 else None}) for n in range(40)},
    peers={"daft": {}, "ray": {"lines": True}},
)
late(
    "integers in 39 CSV files, a fraction in the last",
    Right([{"v": float(n)} for n in range(39)] + [{"v": 0.5}]),
    Right([{"v": str(n)} for n in range(39)] + [{"v": "0.5"}]),
    files={f"{n:02}.csv": f"v\n{n if n < 39 else 0.5}\n" for n in range(40)},
)
late(
    "a text behind 1.5 MB of integers in one file",
    Right([{"id": str(n), "t": PADDING} for n in range(1500)] + [{"id": "A12", "t": PADDING}]),
    Right([{"id": n, "t": PADDING} for n in range(1500)] + [{"id": "A12", "t": PADDING}]),
    files={"a.csv": "id,t\n" + "".join(f"{n},{PADDING}\n" for n in (*range(1500), "A12"))},
)
DAYS = [dt.date(2024, 1, number + 1) for number in range(30)]
for word, nulls in (("n/a", [None]), ("unknown", [])):
    late(
        f"a column of dates with {word} in the last file",
        *(
            Right([{"day": day} for day in (*days, last)])
            for days in (DAYS, [*map(str, DAYS)])
            for last in (word, *nulls)
        ),
        files={f"{n:02}.csv": f"day\n{day}\n" for n, day in enumerate((*DAYS, word))},
    )
late(
    "integers in 19 Parquet files, texts in the last",
    Right([{"id": str(n)} for n in range(19)] + [{"id": "A12"}]),
    Refused("id"),
    read={"format": "parquet"},
    files={f"{n:02}.parquet": parquet({"id": [n if n < 19 else "A12"]}) for n in range(20)},
    peers={"daft": {}},
)
late(
    "truth values that are text in the last file",
    Right([{"v": "true"}] * 20 + [{"v": "maybe"}]),
    Right([{"v": True}] * 20 + [{"v": "maybe"}]),
    files={f"{n:02}.csv": "v\ntrue\n" if n < 20 else "v\nmaybe\n" for n in range(21)},
)


MORE = "in the 34th of 40 files"
WIDER: list[Row] = [{"a": n, **({"b": 7} if n == 33 else {})} for n in range(40)]
WITH_NULLS = Right([{"b": None, **row} for row in WIDER]), Refused("b")
late(
    f"another column {MORE} of CSV",
    *WITH_NULLS,
    files={f"{n:02}.csv": f"a,b\n{n},7\n" if n == 33 else f"a\n{n}\n" for n in range(40)},
)
late(
    f"another column {MORE} of JSON",
    *WITH_NULLS,
    read={"format": "json"},
    files={f"{n:02}.jsonl": lines(row) for n, row in enumerate(WIDER)},
    peers={"daft": {"pattern": ""}, "ray": {"lines": True}},
)
late(
    f"another column {MORE} of Parquet",
    *WITH_NULLS,
    read={"format": "parquet"},
    files={
        f"{n:02}.parquet": parquet({name: [value] for name, value in row.items()})
        for n, row in enumerate(WIDER)
    },
    peers={"daft": {"pattern": ""}},
)
FIELDS = [{"s": row} for row in WIDER]
late(
    f"another field of an object {MORE} of JSON",
    Right(FIELDS),
    read={"format": "json"},
    view=views.without_nulls,
    files={f"{n:02}.jsonl": lines(row) for n, row in enumerate(FIELDS)},
    peers={"daft": {"pattern": ""}, "ray": {"lines": True}},
)
late(
    f"another field of a struct {MORE} of Parquet",
    Right(FIELDS),
    Refused("b|s"),
    read={"format": "parquet"},
    view=views.without_nulls,
    files={f"{n:02}.parquet": parquet({"s": [row["s"]]}) for n, row in enumerate(FIELDS)},
    peers={"daft": {"pattern": ""}},
)
late(
    "a column of JSON behind 1.5 MB without it",
    Right([{"a": n, "t": PADDING} for n in range(1500)] + [{"a": 1500, "b": "late"}]),
    read={"format": "json"},
    view=views.without_nulls,
    files={
        "a.jsonl": lines(*({"a": n, "t": PADDING} for n in range(1500)), {"a": 1500, "b": "late"})
    },
    peers={"daft": {"pattern": ""}, "ray": {"lines": True}},
)


KINDS = {
    "string": pa.string(),
    "large": pa.large_string(),
    "view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
"""The types that Arrow has for texts."""
late(
    "texts in four types of Arrow",
    Right([{"v": kind} for kind in KINDS]),
    read={"format": "parquet"},
    files={
        f"{name}.parquet": parquet({"v": pa.array([name], kind)}) for name, kind in KINDS.items()
    },
    peers={"daft": {"pattern": ""}},
)


def filtered(column: str, value: Any, **options: Any) -> dict[str, Any]:
    """Return how users of the other tools read Hive partitions of CSV files and filter them."""

    def ray(at: Path) -> list[Row]:
        import ray.data

        return list(
            ray.data.read_csv(str(at / "in")).filter(expr=f"{column} >= {value!r}").take_all()
        )

    def daft(at: Path) -> list[Row]:
        import daft as d

        frame = d.read_csv(f"{at}/in/**/*.csv", hive_partitioning=True)
        return list(frame.where(d.col(column) >= value).to_pylist())

    no = "reads no partitions from CSV paths"
    return {"ray": ray, "daft": daft, "pandas": no, "datasets": no, **options}


hive = ADD["R13"]
YEARS = {"year=2024/a.csv": "v\n1\n", "year=2025/a.csv": "v\n2\n"}
hive(
    "a filter on a year",
    Right([{"v": 2, "year": 2025}]),
    Right([{"v": 2, "year": "2025"}]),
    Refused("year"),
    files=YEARS,
    steps=[{"name": "recent", "filter": "year >= 2025"}],
    peers=filtered("year", 2025),
)
hive(
    "a filter on a day",
    Right([{"v": 2, "day": dt.date(2024, 1, 2)}]),
    Right([{"v": 2, "day": "2024-01-02"}]),
    Refused("day"),
    files={"day=2024-01-01/a.csv": "v\n1\n", "day=2024-01-02/a.csv": "v\n2\n"},
    steps=[{"name": "recent", "filter": "str(day) >= '2024-01-02'"}],
    peers=filtered("day", "2024-01-02"),
)
hive(
    "a file whose column has the name of a partition key",
    Refused("year"),
    Right([], failed=1, says="year"),
    read={"format": "parquet"},
    files={"year=2024/a.parquet": parquet({"v": [1], "year": [1999]})},
    peers={"daft": {"pattern": "**/*.parquet", "hive_partitioning": True}},
)
hive(
    "years above the 32nd file that are texts",
    Right([{"v": n, "k": str(n)} for n in range(40)] + [{"v": 40, "k": "last"}]),
    files={f"k={n}/a.csv": f"v\n{n}\n" for n in range(40)} | {"k=last/a.csv": "v\n40\n"},
)

paths = CASES.kind(
    "R25",
    "a column with the name of an added column",
    read={"format": "parquet", "options": {"includePaths": True}},
    peers={
        "ray": {"include_paths": True},
        "daft": {"file_path_column": "path"},
        "pandas": "has no option for paths",
        "datasets": "has no option for paths",
    },
)
paths(
    "a column path, and the option for paths",
    Refused("path"),
    files={"a.parquet": parquet({"path": ["x"], "v": [1]})},
)
paths(
    "the same with another name for the added column",
    Right([{"path": "x", "v": 1, "source_file": "a.parquet"}]),
    options={"includePaths": False, "pathColumn": "source_file"},
    view=lambda row: {**row, "source_file": Path(str(row["source_file"])).name},
    files={"a.parquet": parquet({"path": ["x"], "v": [1]})},
    peers={"ray": "the name is always path", "daft": {"file_path_column": "source_file"}},
)
paths(
    "a field path in JSON",
    Refused("path"),
    read={"format": "json"},
    files={"a.jsonl": lines({"path": "x"})},
    peers={"ray": {"lines": True, "include_paths": True}, "daft": {"file_path_column": "path"}},
)
paths(
    "a column path in CSV",
    Refused("path"),
    read={"format": "csv"},
    files={"a.csv": "path,v\nx,1\n"},
)
paths(
    "a column path in one of 20 files",
    Refused("path"),
    files={
        f"{n:02}.parquet": parquet({"path": ["x"], "v": [n]} if n == 13 else {"v": [n]})
        for n in range(20)
    },
)
paths(
    "a partition key path",
    Refused("path"),
    options={"partitioning": "hive"},
    files={"path=x/a.parquet": parquet({"v": [1]})},
    peers={
        "ray": {"include_paths": True},
        "daft": {"pattern": "**/*.parquet", "hive_partitioning": True, "file_path_column": "path"},
    },
)
paths(
    "a column Path, and the option for paths",
    Right([{"Path": "x", "path": "a.parquet"}]),
    Refused("path"),
    view=views.named,
    files={"a.parquet": parquet({"Path": ["x"]})},
)


def columns(*names: str) -> Any:
    """Return a table whose columns have these names and the values 1, 2, ..."""
    return pa.Table.from_arrays([pa.array([n + 1]) for n in range(len(names))], names=[*names])


twice = CASES.kind("R26", "several columns with one name", read={"format": "parquet"})
BOTH = [
    Right(holds=lambda rows: len(rows) == 1 and sorted(rows[0].values()) == [1, 2]),
    Refused("v.*(twice|duplicate|several|same)|(twice|duplicate|several|same).*v"),
]
twice("twice in Parquet", *BOTH, files={"a.parquet": parquet(columns("v", "v"))})
twice(
    "twice in the header of a CSV file",
    *BOTH,
    read={"format": "csv"},
    files={"a.csv": "v,v\n1,2\n"},
)
twice(
    "twice in an object of JSON",
    Right([{"v": 3}], failed=1, says="v"),
    Refused("v"),
    read={"format": "json"},
    files={"a.jsonl": '{"v": 1, "v": 2}\n{"v": 3}\n'},
    peers={"ray": {"lines": True}},
)
twice(
    "a name in small and in capital letters",
    Right([{"v": 1, "V": 2}]),
    Refused("V"),
    files={"a.parquet": parquet(columns("v", "V"))},
)
twice(
    "three columns of which one has the name of the solution",
    Right(holds=lambda rows: len(rows) == 1 and sorted(rows[0].values()) == [1, 2, 3]),
    Refused("v"),
    files={"a.parquet": parquet(columns("v", "v", "v_1"))},
)
twice(
    "a name in two cases in CSV, beside an empty name",
    Right(holds=lambda rows: len(rows) == 1 and sorted(rows[0].values()) == [1, 2, 3]),
    Refused("id|name"),
    read={"format": "csv"},
    files={"a.csv": "id,ID,\n1,2,3\n"},
)
twice(
    "names that differ by a space",
    Right([{"v": 1, " v": 2}]),
    Refused("v"),
    read={"format": "csv"},
    files={"a.csv": "v, v\n1,2\n"},
)
STRUCT_TWICE = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["v", "v"])
twice(
    "twice in a struct",
    Right([], failed=1, says="v|same name|twice"),
    Refused("v|same name|twice"),
    files={"a.parquet": parquet({"s": STRUCT_TWICE})},
)

UTC = dt.UTC


def zoned(zone: str | None, seconds: int = 0) -> Any:
    return {"t": pa.array([seconds * 1_000_000], pa.timestamp("us", zone))}


MIDNIGHT, ONE = (dt.datetime(1970, 1, 1, 0, 0, second, tzinfo=UTC) for second in (0, 1))
zones = CASES.kind("R31", "times with and without a time zone", read={"format": "parquet"})
zones(
    "one file with a zone, one without",
    Refused("zone|UTC|assumeTimezone"),
    files={"a.parquet": parquet(zoned(None)), "b.parquet": parquet(zoned("UTC", 1))},
)
zones(
    "two zones",
    Right([{"t": MIDNIGHT}, {"t": ONE}]),
    Refused("zone|Berlin"),
    files={"a.parquet": parquet(zoned("Europe/Berlin")), "b.parquet": parquet(zoned("UTC", 1))},
)
zones(
    "CSV with times of which one ends in Z",
    Right([{"t": "2024-01-01 00:00:00"}, {"t": "2024-01-01 00:00:00Z"}]),
    Refused("zone|t"),
    read={"format": "csv"},
    files={"a.csv": "t\n2024-01-01 00:00:00\n2024-01-01 00:00:00Z\n"},
)
OFFSETS = ["2024-01-01T00:00:00+01:00", "2024-01-01T00:00:00-05:00"]
zones(
    "CSV with offsets",
    Right([{"t": naive(text)} for text in OFFSETS]),
    Right([{"t": text} for text in OFFSETS]),
    read={"format": "csv"},
    files={"a.csv": "t\n" + "\n".join(OFFSETS) + "\n"},
)

LONG = "a" * (1 << 20)


def chunked(kind: str) -> Any:
    """Return rows of several megabytes of nested texts, in two chunks of one row group."""
    rows = {
        "list": [[LONG] * 4] * 2,
        "map": [[(LONG, 1), ("b", 2)]] * 2,
        "struct": [{"a": LONG, "b": [LONG, None]}] * 2,
        "text": [LONG * 4] * 2,
    }[kind]
    types = {
        "list": pa.list_(pa.string()),
        "map": pa.map_(pa.string(), pa.int64()),
        "struct": pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]),
        "text": pa.large_string(),
    }
    return {"v": pa.chunked_array([pa.array(rows, types[kind])] * 2)}


def lengths(row: Row) -> Row:
    """Return the length of all texts of a row, which are too long to show."""

    def total(value: Any) -> int:
        if isinstance(value, str):
            return len(value)
        if isinstance(value, dict):
            return sum(map(total, (*value, *value.values())))
        return (
            sum(map(total, value))
            if isinstance(value, list | tuple) or hasattr(value, "tolist")
            else 0
        )

    return {"v": total(row["v"])}


large = CASES.kind(
    "R32",
    "large nested values in one row group (scaled down)",
    read={"format": "parquet"},
    output={"format": "parquet", "rowsPerFile": 1_000_000},
    view=lengths,
)
for kind, size in (
    ("list", 4 << 20),
    ("map", (1 << 20) + 1),
    ("struct", (2 << 20) + 2),
    ("text", 4 << 20),
):
    large(
        f"values of type {kind}",
        Right([{"v": size}] * 4),
        files={"a.parquet": parquet(lambda kind=kind: chunked(kind), row_group_size=10**6)},
    )
large(
    "a text of 3 MiB in JSON behind short ones",
    Right([{"v": 1}] * 3 + [{"v": 3 << 20}]),
    read={"format": "json"},
    files={"a.jsonl": lines(*[{"v": "a"}] * 3, {"v": "a" * (3 << 20)})},
    peers={"ray": {"lines": True}},
)
large(
    "a field of 2 MiB in CSV with a line break",
    Right([{"v": (2 << 20) + 1}, {"v": 1}]),
    read={"format": "csv"},
    files={"a.csv.gz": packed('v\n"' + "a" * (2 << 20) + '\n"\nb\n')},
    view=lengths,
    peers={"daft": {"pattern": "*"}, "pandas": {"pattern": "*"}},
)
