"""spec.read: each format has its own options and refuses the options of other formats."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from batchinference.spec import SpecError, parse
from batchinference.spec.read import FileOptions
from support.documents.minimal import document
from support.documents.refusals import (
    READ_OPTIONS,
    accepted_at,
    reading,
    refused,
    refused_at,
    short,
)
from support.documents.variations import REMOVED

EMPTY_LIST = ": expected at least 1 item, got 0. Add 1 item"
SHORT = "expected at least 1 character, got ''"
DELIMITER = ": expected one ASCII character or a tab, got "
MARK = ": expected one ASCII character that is no letter, digit or space, or an empty text, got "
COMMON = [field.alias or name for name, field in FileOptions.model_fields.items()]
FRAME_DEFAULTS = {"truncated": "fail", "size": None, "maxPixels": 64_000_000,
                  "orientation": "apply", "background": "white"}  # fmt: skip
IMAGE_DEFAULTS = {**FRAME_DEFAULTS, "mode": "RGB", "range": None}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], EMPTY_LIST),
        ([{}], "[0]: expected at least 1 item, got 0. Add 1 item"),
        (["a"], "[0]: expected a mapping, got 'a'"),
        (
            [{"a": dt.date(2024, 1, 1)}],
            "[0].a: JSON has no such value, got 2024-01-01. Write a date in quotes",
        ),
        (
            [{"a": "x" * 70_000}],
            ": at most 65536 bytes as JSON, here are 70011: put them into a file",
        ),
    ],
    ids=short,
)
def test_invalid_items_are_refused(items: Any, message: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse(document(read={"format": "items", "items": items}))
    assert str(refused.value) == f"spec.read.items{message}"


def test_format_accepts_its_own_options() -> None:
    for format_, own in READ_OPTIONS.items():
        dumped = parse(reading(format_)).spec.read.options.model_dump(by_alias=True)
        assert {name: dumped[name] for name in own} == own, format_


def test_format_refuses_options_of_other_formats() -> None:
    every = {name: value for own in READ_OPTIONS.values() for name, value in own.items()}
    for format_, options in READ_OPTIONS.items():
        own = [*COMMON, *options]
        hints = {f". Use one of {', '.join(own)}", *(f"; did you mean '{name}'?" for name in own)}
        for option in every.keys() - options.keys():
            message = refused(reading(format_, **{option: every[option]}))
            unknown = f"spec.read.options.{option}: unknown option '{option}' for {format_}"
            assert message in {unknown + hint for hint in hints}


@pytest.mark.parametrize(
    ("format_", "option", "nearest"),
    [
        ("parquet", "colums", "columns"),
        ("csv", "columns", "columnNames"),
        ("images", "sise", "size"),
        ("video", "resize", "size"),
        ("video", "include_timestamp", "includeTimestamps"),
        ("audio", "samplerate", "sampleRate"),
    ],
)
def test_unknown_option_suggests_the_nearest(format_: str, option: str, nearest: str) -> None:
    assert refused(reading(format_, **{option: 1})) == (
        f"spec.read.options.{option}: unknown option '{option}' for {format_}"
        f"; did you mean '{nearest}'?"
    )


@pytest.mark.parametrize(
    ("format_", "defaults"),
    [
        ("images", {**IMAGE_DEFAULTS, "maxRowBytes": None, "pages": "first"}),
        ("parquet", {"columns": None, "assumeTimezone": None, "int96": "us",
                     "duplicateColumns": "fail"}),
        ("json", {"lines": True, "maxRowBytes": None}),
        ("csv", {"delimiter": None, "columnNames": None, "encoding": "utf-8", "quote": '"',
                 "escape": "", "comment": "", "skipLines": 0, "newlinesInValues": True,
                 "decimal": ".", "nullValues": [], "maxRowBytes": None,
                 "duplicateColumns": "fail"}),
        ("text", {"encoding": "utf-8", "dropEmptyLines": True, "maxRowBytes": None}),
        ("binary", {"maxRowBytes": None}),
        ("numpy", {"maxRowBytes": None}),
        ("audio", {"sampleRate": None, "mono": False, "maxRowBytes": None,
                   "truncated": "fail"}),
        ("video", {**FRAME_DEFAULTS, "fps": None, "includeTimestamps": False}),
        ("webdataset", {**IMAGE_DEFAULTS, "decoder": True, "suffixes": None,
                        "maxRowBytes": None}),
        ("manifest", {**IMAGE_DEFAULTS, "column": "uri", "decode": "bytes",
                      "onUnreachable": "fail", "allow": [], "maxBytes": 64 << 20}),
    ],
    ids=short,
)  # fmt: skip
def test_option_defaults(format_: str, defaults: dict[str, Any]) -> None:
    read = parse(document(read={"format": format_, "paths": ["in"]})).spec.read
    common = {"includePaths": False, "ignoreMissingPaths": False}
    expected = {**dict.fromkeys(COMMON), **common, **defaults}
    assert read.options.model_dump(by_alias=True) == expected


@pytest.mark.parametrize("encoding", ["utf-9", "hex", "rot13", "undefined", "idna", "a\0"])
@pytest.mark.parametrize("format_", ["text", "csv"])
def test_encodings_that_are_not_for_text_are_refused(format_: str, encoding: str) -> None:
    read = {"format": format_, "paths": ["in"], "options": {"encoding": encoding}}
    message = refused(document(read=read))
    expected = f"encoding: Python knows no such encoding of text, got {encoding!r}. Use"
    assert f"spec.read.options.{expected}" in message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (REMOVED, "required, but missing"),
        ("imagse", "'imagse' is not one of {formats}; did you mean 'images'?"),
    ],
    ids=short,
)
def test_unknown_format_is_refused(value: Any, message: str) -> None:
    formats = [*READ_OPTIONS, "sql", "huggingface", "lance", "items"]
    expected = message.format(formats=", ".join(formats))
    assert refused_at("spec.read.format", value) == f"spec.read.format: {expected}"


@pytest.mark.parametrize(
    ("format_", "option", "value", "message"),
    [
        ("images", "includePaths", "yes", ": expected true or false, got 'yes'"),
        ("text", "fileExtensions", [], EMPTY_LIST),
        ("text", "fileExtensions", [""], f"[0]: {SHORT}"),
        ("text", "fileExtensions", ["t" * 17],
         "[0]: expected at most 16 characters, got 17. Remove 1 character"),
        ("text", "fileExtensions", ["t"] * 33,
         ": expected at most 32 items, got 33. Remove 1 item"),
        ("images", "mode", "RGBa",
         ": 'RGBa' is not one of RGB, RGBA, L, I;16; did you mean 'RGBA'?"),
        ("images", "range", [5, 5], ": black (5) must be less than white (5). Swap or change them"),
        ("video", "background", "red", ": expected a colour: black, gray, white, or one such as "
         "'#ff8000', got 'red'"),
        ("images", "size", [0, 9], "[0]: expected at least 1, got 0. Write 1 or more"),
        ("images", "size", [9, 65537],
         "[1]: expected at most 65536, got 65537. Write 65536 or less"),
        ("csv", "delimiter", "", f"{DELIMITER}''"),
        ("csv", "delimiter", "\n", f"{DELIMITER}'\\n'"),
        ("csv", "delimiter", "é", f"{DELIMITER}'é'"),
        ("csv", "quote", "a", f"{MARK}'a'"),
        ("csv", "escape", "\t", f"{MARK}'\\t'"),
        ("csv", "comment", "é", f"{MARK}'é'"),
        ("csv", "skipLines", -1, ": expected at least 0, got -1. Write 0 or more"),
        ("csv", "decimal", ";", ": ';' is not one of ., ,"),
        ("csv", "nullValues", ["-", "-"], ": '-' is named twice. Remove one of them"),
        ("manifest", "allow", ["intranet"],
         "[0]: expected the beginning of an address such as s3://bucket/, or of an absolute "
         "path, got 'intranet'"),
        ("manifest", "allow", ["http://host:99999/"],
         "[0]: not a valid prefix: its port is invalid, "
         "got 'http://host:99999/'"),
    ],
    ids=short,
)  # fmt: skip
def test_option_out_of_range_is_refused(
    format_: str, option: str, value: Any, message: str
) -> None:
    assert refused(reading(format_, **{option: value})) == f"spec.read.options.{option}{message}"


@pytest.mark.parametrize("delimiter", ["\t", ";", "|", " ", "~"])
def test_csv_delimiter_is_accepted(delimiter: str) -> None:
    assert parse(reading("csv", delimiter=delimiter))


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("paths", REMOVED, "spec.read.paths: required, but missing. Add paths: [./data]"),
        ("paths", "s3://in/",
         "spec.read.paths: expected a list, got 's3://in/'. Write the items in brackets: [a, b]"),
        ("paths", [],
         "spec.read.paths: expected at least 1 item, got 0. Write paths: [./data]"),
        ("paths", ["in"] * 257,
         "spec.read.paths: expected at most 256 items, got 257. Remove 1 item"),
        ("path", "s3://in/", "spec.read.path: unknown field; did you mean 'paths'?"),
        ("options", None, "spec.read.options: expected a mapping, got null"),
    ],
    ids=short,
)  # fmt: skip
def test_paths_or_options_of_wrong_type_are_refused(place: str, value: Any, message: str) -> None:
    assert refused_at(f"spec.read.{place}", value) == message


def test_paths_up_to_256_are_accepted() -> None:
    paths = [f"in-{number}" for number in range(256)]
    assert len(accepted_at("spec.read.paths", paths).spec.read.paths) == 256


@pytest.mark.parametrize(
    "options",
    [
        {"escape": '"'},
        {"quote": "#", "comment": "#"},
        {"comment": ","},
        {"delimiter": "\\", "escape": "\\"},
        {"delimiter": '"'},
    ],
    ids=short,
)
def test_characters_of_csv_must_differ(options: dict[str, Any]) -> None:
    assert "two of them are the same character" in refused(reading("csv", **options))


def test_csv_may_have_no_quotes_and_no_escape_character() -> None:
    options = parse(
        reading("csv", quote="", escape="", comment="", delimiter=";")
    ).spec.read.options
    assert (options.quote, options.escape) == ("", "")
