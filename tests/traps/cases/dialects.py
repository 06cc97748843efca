"""CSV as programs write it: separators, quotes, comments, encodings and damage."""

from __future__ import annotations

import datetime as dt
import gzip
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from traps.case import Cases, Peer, Refused, Right, Row
from traps.inputs import parquet

CASES = Cases("dialects")
AB = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]
NOTED = "no such option"


def with_options(
    *,
    pandas: Any = None,
    datasets: Any = None,
    daft: Any = None,
    ray: Mapping[str, Mapping[str, Any]] | None = None,
) -> dict[str, Peer]:
    """Return the options of the other tools. A tool without options here has none for the case.

    `ray` has the fields of the options of PyArrow: `read`, `parse` and `convert`."""
    return {
        "pandas": NOTED if pandas is None else pandas,
        "datasets": NOTED if datasets is None else (pandas if datasets is True else datasets),
        "daft": NOTED if daft is None else {"pattern": "*.csv", **daft},
        "ray": NOTED if ray is None else lambda at: _ray(at, ray),
    }


def _ray(directory: Path, options: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    from traps.peers import with_ray

    kinds = {"read": csv.ReadOptions, "parse": csv.ParseOptions, "convert": csv.ConvertOptions}
    return with_ray.read_csv(
        directory, **{f"{name}_options": kinds[name](**given) for name, given in options.items()}
    )


def separated(by: str) -> dict[str, Peer]:
    return with_options(
        pandas={"sep": by}, datasets=True, daft={"delimiter": by}, ray={"parse": {"delimiter": by}}
    )


excel = CASES.kind(
    "R15",
    "the separator line of Excel, and other delimiters",
    read={"format": "csv"},
    peers={"daft": {"pattern": "*.csv"}},
)
SEP = "sep=;\nid;text\n1;a\n2;b\n"
excel(
    "sep=; with the delimiter",
    Right(AB),
    files={"a.csv": SEP},
    options={"delimiter": ";"},
    peers=separated(";"),
)
excel("sep=; without an option", Right(AB), files={"a.csv": SEP})
excel("a tab behind sep=", Right(AB), files={"a.csv": SEP.replace(";", "\t")})
excel(
    "SEP=| in capitals, with CRLF", Right(AB), files={"a.csv": "SEP=|\r\nid|text\r\n1|a\r\n2|b\r\n"}
)
excel(
    "sep=, behind a byte order mark", Right(AB), files={"a.csv": "\ufeff" + SEP.replace(";", ",")}
)
excel(
    "sep=; in UTF-16",
    Right(AB),
    files={"a.csv": SEP.encode("utf-16")},
    options={"encoding": "utf-16"},
    peers=with_options(
        pandas={"encoding": "utf-16"}, datasets=True, ray={"read": {"encoding": "utf-16"}}
    ),
)
excel("sep=; in quotes", Right(AB), files={"a.csv": '"sep=;"\nid;text\n1;a\n2;b\n'})
excel(
    "sep=; in one of two files",
    Right([*AB, *AB]),
    files={"a.csv": SEP, "b.csv": "id,text\n1,a\n2,b\n"},
)
excel(
    "a column that is called sep=x",
    Right([{"sep=x": 1, "text": "a"}]),
    files={"a.csv": "sep=x,text\n1,a\n"},
)
excel(
    "semicolons without any sign",
    Right(AB),
    Refused("delimiter", check_only=True),
    files={"a.csv": "id;text\n1;a\n2;b\n"},
)
excel(
    "tabs in a .tsv file without an option",
    Right(AB),
    Refused("delimiter", check_only=True),
    files={"a.tsv": "id\ttext\n1\ta\n2\tb\n"},
    peers={"daft": {"pattern": "*.tsv"}, "pandas": {"pattern": "*.tsv"}},
)
excel(
    "pipes, and commas in the texts",
    Right([{"id": 1, "text": "a, b"}, {"id": 2, "text": "c, d"}]),
    Refused("delimiter", check_only=True),
    files={"a.csv": "id|text\n1|a, b\n2|c, d\n"},
)
excel(
    "one column of texts with semicolons",
    Right([{"text": "a; b"}, {"text": "c"}, {"text": "d; e; f"}]),
    files={"a.csv": "text\na; b\nc\nd; e; f\n"},
)

HI = [{"id": 1, "text": 'say "hi", please'}, {"id": 2, "text": "x"}]
HI_FILE = 'id,text\n1,"say \\"hi\\", please"\n2,x\n'
ESCAPED = with_options(
    pandas={"escapechar": "\\"},
    datasets=True,
    daft={"escape_char": "\\"},
    ray={"parse": {"escape_char": "\\"}},
)
escapes = CASES.kind(
    "R17",
    "quotes with a backslash, and no quotes",
    read={"format": "csv"},
    peers={"daft": {"pattern": "*.csv"}},
)
escapes(
    "quotes with a backslash, and the option",
    Right(HI),
    options={"escape": "\\"},
    files={"a.csv": HI_FILE},
    peers=ESCAPED,
)
escapes(
    "quotes with a backslash, without the option",
    Right(HI),
    Right([HI[1]], failed=1, says="escape|quote|field|column"),
    Refused("escape", check_only=True),
    files={"a.csv": HI_FILE},
)
SAY = 'id,text\n1,"say \\"hi\\""\n2,x\n'
escapes(
    "the same without a comma in the text",
    Right([{"id": 1, "text": 'say "hi"'}, HI[1]]),
    Right([HI[1]], failed=1, says="escape|quote"),
    Refused("escape", check_only=True),
    files={"a.csv": SAY},
)
escapes(
    "a line break and a backslash that are escaped",
    Right([{"id": 1, "text": "a\nb"}, {"id": 2, "text": "C:\\"}]),
    options={"escape": "\\"},
    files={"a.csv": 'id,text\n1,"a\\\nb"\n2,"C:\\\\"\n'},
    peers=ESCAPED,
)
DISKS = [{"id": 1, "text": '5" disk'}, {"id": 2, "text": '"'}, {"id": 3, "text": 'a "b" c'}]
UNQUOTED = 'id\ttext\n1\t5" disk\n2\t"\n3\ta "b" c\n'
escapes(
    "a dump of MySQL with tabs and no quotes",
    Right(DISKS),
    options={"delimiter": "\t", "quote": ""},
    files={"a.csv": UNQUOTED},
    peers=with_options(
        pandas={"sep": "\t", "quoting": 3},
        datasets=True,
        ray={"parse": {"delimiter": "\t", "quote_char": False}},
    ),
)
escapes(
    "the same without the option",
    Right(DISKS),
    Right([DISKS[0], DISKS[2]], failed=1, says="quote"),
    Refused("quote", check_only=True),
    options={"delimiter": "\t"},
    files={"a.csv": UNQUOTED},
    peers=separated("\t"),
)
escapes(
    "single quotes",
    Right([{"id": 1, "text": "a, b"}, {"id": 2, "text": "it's"}]),
    options={"quote": "'"},
    files={"a.csv": "id,text\n1,'a, b'\n2,'it''s'\n"},
    peers=with_options(
        pandas={"quotechar": "'"},
        datasets=True,
        daft={"quote": "'"},
        ray={"parse": {"quote_char": "'"}},
    ),
)
WINDOWS = [
    {"id": 1, "text": "C:\\new\\table"},
    {"id": 2, "text": "\\"},
    {"id": 3, "text": 'a\\b "c"'},
]
escapes(
    "backslashes of Windows stay",
    Right(WINDOWS),
    files={"a.csv": 'id,text\n1,C:\\new\\table\n2,\\\n3,"a\\b ""c"""\n'},
)
escapes(
    "a quoted path of Windows that ends with a backslash",
    Right([{"id": 1, "text": "C:\\"}, {"id": 2, "text": "x"}]),
    files={"a.csv": 'id,text\n1,"C:\\"\n2,x\n'},
)
escapes(
    "doubled and escaped quotes in one file, with the option",
    Right([{"id": 1, "text": 'a "b"'}, {"id": 2, "text": 'c "d"'}]),
    options={"escape": "\\"},
    files={"a.csv": 'id,text\n1,"a \\"b\\""\n2,"c ""d"""\n'},
    peers=ESCAPED,
)

PRICES = [{"id": 1, "price": 1.5}, {"id": 2, "price": -0.25}]
COMMENTS = "# made by a tool\nid,text\n1,a\n# pause\n2,b\n"
dialects = CASES.kind(
    "R18",
    "decimal commas, comments and lines before the header",
    read={"format": "csv"},
    peers={"daft": {"pattern": "*.csv"}},
)
dialects(
    "decimal commas",
    Right(PRICES),
    options={"delimiter": ";", "decimal": ","},
    files={"a.csv": "id;price\n1;1,5\n2;-0,25\n"},
    peers=with_options(
        pandas={"sep": ";", "decimal": ","},
        datasets=True,
        ray={"parse": {"delimiter": ";"}, "convert": {"decimal_point": ","}},
    ),
)
dialects(
    "decimal commas without the option stay text",
    Right([{"id": 1, "price": "1,5"}, {"id": 2, "price": "-0,25"}]),
    Refused("decimal", check_only=True),
    options={"delimiter": ";"},
    files={"a.csv": "id;price\n1;1,5\n2;-0,25\n"},
    peers=separated(";"),
)
dialects(
    "thousands with points, and decimal commas",
    Right([{"price": "1.234,56"}, {"price": "2,5"}]),
    Right([{"price": 1234.56}, {"price": 2.5}]),
    options={"delimiter": ";", "decimal": ","},
    files={"a.csv": "price\n1.234,56\n2,5\n"},
    peers=with_options(
        pandas={"sep": ";", "decimal": ",", "thousands": "."},
        datasets=True,
        ray={"parse": {"delimiter": ";"}, "convert": {"decimal_point": ","}},
    ),
)
dialects(
    "only thousands with points, with the option for decimal commas",
    Right([{"price": "1.234"}, {"price": "2.500"}]),
    Right([{"price": 1234}, {"price": 2500}]),
    options={"delimiter": ";", "decimal": ","},
    files={"a.csv": "price\n1.234\n2.500\n"},
    peers=with_options(
        pandas={"sep": ";", "decimal": ","},
        datasets=True,
        ray={"parse": {"delimiter": ";"}, "convert": {"decimal_point": ","}},
    ),
)
COMMENTED = with_options(pandas={"comment": "#"}, datasets=True, daft={"comment": "#"})
dialects(
    "comment lines",
    Right(AB, warnings={"LinesSkipped": 2}),
    options={"comment": "#"},
    files={"a.csv": COMMENTS},
    peers=COMMENTED,
)
dialects(
    "a comment sign inside of texts",
    Right(
        [
            {"id": 1, "text": "#tag"},
            {"id": 2, "text": "a # b"},
            {"id": 3, "text": "x\n# no comment\ny"},
        ]
    ),
    options={"comment": "#"},
    files={"a.csv": 'id,text\n1,#tag\n2,a # b\n3,"x\n# no comment\ny"\n'},
    peers=COMMENTED,
)
PREAMBLE = "Report of 2024\n\nid,text\n1,a\n2,b\n"
dialects(
    "two lines before the header",
    Right(AB, warnings={"LinesSkipped": 1}),
    options={"skipLines": 2},
    files={"a.csv": PREAMBLE},
    peers=with_options(pandas={"skiprows": 2}, datasets=True, ray={"read": {"skip_rows": 2}}),
)
dialects(
    "two lines before the header, without the option",
    Refused("skipLines|header|delimiter|column", check_only=True),
    Right([], failed=3, says="field|column"),
    files={"a.csv": PREAMBLE},
)
dialects(
    "lines before the header of a file in UTF-16 with CRLF",
    Right(AB, warnings={"LinesSkipped": 1}),
    options={"skipLines": 2, "encoding": "utf-16"},
    files={"a.csv": PREAMBLE.replace("\n", "\r\n").encode("utf-16")},
    peers=with_options(
        pandas={"skiprows": 2, "encoding": "utf-16"},
        datasets=True,
        ray={"read": {"skip_rows": 2, "encoding": "utf-16"}},
    ),
)
dialects(
    "lines before the header with a quote that is not closed",
    Right(AB, warnings={"LinesSkipped": 1}),
    options={"skipLines": 2},
    files={"a.csv": 'a 5" disk "report\nof, today\nid,text\n1,a\n2,b\n'},
    peers=with_options(pandas={"skiprows": 2}, datasets=True, ray={"read": {"skip_rows": 2}}),
)
dialects(
    "all options of a German export",
    Right([{"id": 1, "price": 1.5, "text": 'a "b"; c'}], warnings={"LinesSkipped": 1}),
    options={
        "delimiter": ";",
        "decimal": ",",
        "skipLines": 1,
        "comment": "#",
        "encoding": "cp1252",
        "escape": "\\",
    },
    files={"a.csv": 'Umsätze\n# €\nid;price;text\n# x\n1;1,5;"a \\"b\\"; c"\n'.encode("cp1252")},
    peers=with_options(
        pandas={
            "sep": ";",
            "decimal": ",",
            "skiprows": 1,
            "comment": "#",
            "encoding": "cp1252",
            "escapechar": "\\",
        },
        datasets=True,
    ),
)
dialects(
    "a delimiter behind each last field",
    Right([{"id": 1, "text": "a"}]),
    Right(holds=lambda rows: len(rows) == 1 and (rows[0]["id"], rows[0]["text"]) == (1, "a")),
    Refused("name|column"),
    files={"a.csv": "id,text,\n1,a,\n"},
)
dialects(
    "a name of a column in two lines",
    Right([{"total\nprice": 1.5}]),
    files={"a.csv": '"total\nprice"\n1.5\n'},
)

OPEN = 'id,text\n1,a\n2,"open\n3,c\n4,d\n'
ROW1, ROW3, ROW4 = ({"id": n, "text": text} for n, text in ((1, "a"), (3, "c"), (4, "d")))
quotes = CASES.kind(
    "R23",
    "a quote that is not closed",
    read={"format": "csv"},
    peers={"daft": {"pattern": "*.csv"}},
)
quotes(
    "in the second of four lines",
    Right([ROW1, ROW3, ROW4], failed=1, says="quote"),
    files={"a.csv": OPEN},
)
quotes(
    "in the last line",
    Right([ROW1], failed=1, says="quote"),
    files={"a.csv": 'id,text\n1,a\n2,"open\n'},
)
quotes(
    "in a file of 1,000 lines",
    Right([{"id": n, "text": "x"} for n in range(1000) if n != 10], failed=1, says="quote"),
    files={
        "a.csv": "id,text\n" + "".join(f"{n},{chr(34) if n == 10 else ''}x\n" for n in range(1000))
    },
)
quotes(
    "in the first of two files",
    Right([ROW1, ROW3, ROW4, *AB], failed=1, says="quote"),
    files={"a.csv": OPEN, "b.csv": "id,text\n1,a\n2,b\n"},
)
quotes(
    "two open quotes, so that the text between them seems quoted",
    Right([ROW1, ROW4], failed=2, says="quote"),
    files={"a.csv": 'id,text\n1,a\n2,"open\n3,"closed\n4,d\n'},
)
quotes(
    "behind a CRLF, with CRLF",
    Right([ROW1, ROW3, ROW4], failed=1, says="quote"),
    files={"a.csv": OPEN.replace("\n", "\r\n")},
)
quotes("in the header", Refused("quote|header"), files={"a.csv": '"id,text\n1,a\n2,b\n'})
quotes(
    "behind text, where it is no quote",
    Right([ROW1, {"id": 2, "text": '5" disk'}, ROW3]),
    files={"a.csv": 'id,text\n1,a\n2,5" disk\n3,c\n'},
)
quotes(
    "text behind a closed quote",
    Right([ROW1, ROW3], failed=1, says="quote|field"),
    Right([ROW1, {"id": 2, "text": "ab"}, ROW3]),
    Right([ROW1, {"id": 2, "text": 'ab"'}, ROW3]),
    files={"a.csv": 'id,text\n1,a\n2,"a"b\n3,c\n'},
)

plain = CASES.kind(
    "R42",
    "line breaks, encodings, empty files and types of Parquet",
    read={"format": "csv"},
    peers={"daft": {"pattern": "*.csv"}},
)
BREAKS = [{"id": 1, "text": "a\nb"}, {"id": 2, "text": "c\r\nd, e"}, {"id": 3, "text": 'f "g"\n\n'}]
plain(
    "line breaks in quotes",
    Right(BREAKS),
    files={"a.csv": 'id,text\n1,"a\nb"\n2,"c\r\nd, e"\n3,"f ""g""\n\n"\n'},
    peers=with_options(
        pandas={}, datasets={}, daft={}, ray={"parse": {"newlines_in_values": True}}
    ),
)
plain("a byte order mark", Right(AB), files={"a.csv": b"\xef\xbb\xbfid,text\n1,a\n2,b\n"})
plain(
    "UTF-16",
    Right([{"id": 1, "text": "ä"}]),
    options={"encoding": "utf-16"},
    files={"a.csv": "id,text\n1,ä\n".encode("utf-16")},
    peers=with_options(
        pandas={"encoding": "utf-16"}, datasets=True, ray={"read": {"encoding": "utf-16"}}
    ),
)
plain(
    "UTF-16 without the option",
    Refused("utf|encoding|decode"),
    files={"a.csv": "id,text\n1,ä\n".encode("utf-16")},
)
plain("lines that end with CR", Right(AB), files={"a.csv": "id,text\r1,a\r2,b\r"})
plain(
    "an empty file and one with only a header",
    Right(AB),
    files={"a.csv": "id,text\n1,a\n2,b\n", "b.csv": "", "c.csv": "id,text\n"},
)
plain(
    "two members in one gzip file",
    Right(AB),
    files={"a.csv.gz": gzip.compress(b"id,text\n1,a\n") + gzip.compress(b"2,b\n")},
    peers={"daft": {"pattern": "*"}, "pandas": {"pattern": "*"}},
)
plain(
    "another order of the columns in the second file",
    Right([*AB, {"id": 3, "text": "c"}]),
    files={"a.csv": "id,text\n1,a\n2,b\n", "b.csv": "text,id\nc,3\n"},
)
plain(
    "NA, null and an empty field",
    Right([{"id": 1, "text": "NA"}, {"id": 2, "text": "null"}, {"id": 3, "text": ""}]),
    Right([{"id": 1, "text": "NA"}, {"id": 2, "text": "null"}, {"id": 3, "text": None}]),
    files={"a.csv": "id,text\n1,NA\n2,null\n3,\n"},
)
plain(
    "the same with the option of the other tools",
    Right([{"id": 1, "text": "NA"}, {"id": 2, "text": "null"}, {"id": 3, "text": ""}]),
    Right([{"id": 1, "text": "NA"}, {"id": 2, "text": "null"}, {"id": 3, "text": None}]),
    files={"a.csv": "id,text\n1,NA\n2,null\n3,\n"},
    peers=with_options(
        pandas={"keep_default_na": False},
        datasets=True,
        daft={},
        ray={"convert": {"null_values": []}},
    ),
)
plain(
    "the country code NA of Namibia",
    Right([{"country": "NA"}, {"country": "DE"}]),
    files={"a.csv": "country\nNA\nDE\n"},
)


ODD = "a\u2028b\x85c\x0bd\x0ce\x1cf"
"""A text with characters that are line ends for Python's `splitlines`, but not for files."""
plain(
    "characters that look like line ends, in CSV",
    Right([{"text": ODD, "n": 1}, {"text": "x", "n": 2}]),
    files={"a.csv": f"text,n\n{ODD},1\nx,2\n"},
)
plain(
    "characters that look like line ends, in text",
    Right([{"text": ODD}, {"text": "x"}]),
    read={"format": "text"},
    files={"a.txt": f"{ODD}\nx\n"},
    peers={"daft": {"pattern": ""}},
)
plain(
    "characters that look like line ends, in JSON",
    Right([{"text": ODD.replace("\x0b", "").replace("\x0c", "").replace("\x1c", "")}]),
    read={"format": "json"},
    files={"a.jsonl": '{"text": "a\u2028b\x85cdef"}\n'},
    peers={"daft": {"pattern": ""}, "ray": {"lines": True}},
)
plain(
    "a gzip file whose end is missing",
    Right(holds=lambda rows: 0 <= len(rows) < 10_000, failed=1, says="end|truncated|damaged|gzip"),
    Refused("end|truncated|damaged|gzip"),
    files={"a.csv.gz": lambda: gzip.compress(b"v\n" + bytes(range(48, 58)) * 9000)[:-20]},
    peers={"daft": {"pattern": "*"}, "pandas": {"pattern": "*"}},
)


MAP = pa.map_(pa.string(), pa.int64())
PAIRS = {"m": pa.array([[("k", 1), ("k", 2)]], MAP), "t": pa.array([1], pa.time64("ns"))}
plain(
    "a map that has a key twice",
    Right([{"m": [("k", 1), ("k", 2)]}]),
    read={"format": "parquet"},
    view=lambda row: {"m": [tuple(pair) for pair in row["m"]]},
    files={"a.parquet": parquet(PAIRS)},
    peers={"daft": {"pattern": ""}},
)


EXOTIC: dict[str, tuple[pa.DataType, Any]] = {
    "u": (pa.uint64(), 2**64 - 1),
    "d": (pa.decimal256(50, 2), Decimal("1234567890123456789012345678901234567890.12")),
    "c": (pa.dictionary(pa.int32(), pa.string()), "x"),
    "m": (MAP, [("k", 1)]),
    "h": (pa.float16(), np.float16(0.5)),
    "s": (pa.duration("us"), dt.timedelta(seconds=1)),
    "b": (pa.binary(), b"\x00\xff"),
}
"""Types that few readers know, and a value of each."""


def _exotic(row: Row) -> Row:
    pairs = row["m"].items() if isinstance(row["m"], dict) else row["m"]
    listed = [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in pairs]
    return {name: {**row, "m": listed}[name] for name in EXOTIC}


plain(
    "uint64, decimal256, dictionary, map, float16 and duration in Parquet",
    Right([{name: value for name, (_, value) in EXOTIC.items()}]),
    read={"format": "parquet"},
    view=_exotic,
    files={
        "a.parquet": parquet(
            {name: pa.array([value], kind) for name, (kind, value) in EXOTIC.items()}
        )
    },
    peers={"daft": {}},
)
