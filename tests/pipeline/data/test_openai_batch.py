"""Files of the OpenAI batch API: a line is a request, or a failed row with its id."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.commit.output_paths import Layout
from batchinference.pipeline.output import openai_errors
from batchinference.pipeline.output.writers.kinds import rewriting_writer_for, writer_for
from batchinference.pipeline.storage.location import Location
from batchinference.spec.write import WriteOpenaiBatch
from plugins.messages import Messages
from support.inputs.read_files import read_files

BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def line(custom_id: Any = "a", **fields: Any) -> str:
    own = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": BODY}
    return json.dumps({name: value for name, value in {**own, **fields}.items() if value != "-"})


@pytest.mark.parametrize(
    ("name", "packed", "end"),
    [
        ("a.jsonl", bytes, "\n"),
        ("a.jsonl", lambda content: b"\xef\xbb\xbf" + content, "\r\n"),
        ("a.jsonl.gz", gzip.compress, "\n\n"),
    ],
    ids=["plain", "mark and crlf", "gzip and blank lines"],
)
def test_requests_are_read_unchanged(tmp_path: Path, name: str, packed: Any, end: str) -> None:
    exact = '{"temperature": 1.50, "seed": 123456789012345678901, "x": null}'
    lines = [
        line("ä", url="/embeddings"),
        line("b").replace(json.dumps(BODY), exact),
        line("b", url="/v1/completions", priority={"a": 1}),
    ]
    (tmp_path / name).write_bytes(packed(end.join(lines).encode()))
    outcome = read_files("openaiBatch", tmp_path / name)
    assert [list(row.values()) for row in outcome.good] == [
        ["ä", "POST", "/embeddings", json.dumps(BODY)],
        ["b", "POST", "/v1/chat/completions", exact],
        ["b", "POST", "/v1/completions", json.dumps(BODY)],
    ]
    assert outcome.bad == {}


BAD_LINES = {
    "no json": ("{custom_id: x", None),
    "cut": ('{"custom_id": "cü", "method": "POST", "body": {"mod', "cü"),
    "cut id": ('{"custom_id": "c', None),
    "number": ("17", None),
    "array": ("[1]", None),
    "no id": (line("-"), None),
    "number as id": (line(5), None),
    "half of a pair": (line("\ud800"), "?"),
    "field twice": (line("d")[:-1] + ', "url": "x"}', "d"),
    "method": (line("d", method="GET"), "d"),
    "no method": (line("d", method="-"), "d"),
    "other api": (line("d", url="/v1/responses"), "d"),
    "other host": (line("d", url="http://169.254.169.254/embeddings"), "d"),
    "no url": (line("d", url=None), "d"),
    "text as body": (line("d", body="{}"), "d"),
    "no body": (line("d", body="-"), "d"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_malformed_line_is_a_failed_row_with_its_id(
    tmp_path: Path, case: str, messages: Messages
) -> None:
    bad, custom_id = BAD_LINES[case]
    (tmp_path / "a.jsonl").write_text("\n".join([line("before"), bad, "", line("after")]))
    outcome = read_files("openaiBatch", tmp_path / "a.jsonl")
    assert [row["custom_id"] for row in outcome.good] == ["before", "after"]
    assert outcome.order == [(0, 0), (0, 2)]
    messages.check(outcome.bad[(0, 1)])
    (values,) = pa.concat_tables(batch.errors for batch in outcome.batches)["values"].to_pylist()
    assert (values and json.loads(values)["custom_id"]) == custom_id


def test_a_file_that_is_one_array_is_refused(tmp_path: Path, messages: Messages) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps([json.loads(line())], indent=1))
    messages.check(read_files("openaiBatch", tmp_path / "a.jsonl").bad[(0, 0)])


WRITE = WriteOpenaiBatch(format="openaiBatch", path="/out")


def table(*rows: tuple[Any, Any]) -> pa.Table:
    ids, responses = zip(*rows, strict=True)
    columns = {"custom_id": ids, "response": responses}
    return pa.table({"_bi_row": range(3, 3 + len(rows)), **columns})


def test_results_keep_the_text_of_the_response() -> None:
    response = '{"n": 1.50,\n "t": "\\nä"}'
    writer = writer_for(WRITE)
    ((ending, content),) = writer.files(table(("a", response), ('"\n', "{}")))
    first, second = content.decode().removesuffix("\n").split("\n")
    assert (ending, response.replace("\n", " ") in first) == (".jsonl", True)
    assert json.loads(first) == {
        "id": "batch_req_00000000000000000003",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "batch_req_00000000000000000003",
            "body": {"n": 1.5, "t": "\nä"},
        },
        "error": None,
    }
    assert json.loads(second)["custom_id"] == '"\n'
    rewriter = rewriting_writer_for(WRITE)
    assert rewriter is not None
    assert bytes(rewriter.write([rewriter.read(bytes(content))] * 2)) == content * 2


@pytest.mark.parametrize("end", ["\x85", "\u2028", "\u2029"])
def test_line_is_one_line_for_every_reader(end: str) -> None:
    ((_, content),) = writer_for(WRITE).files(table((end, f'{{"t": "{end}"}}')))
    (read,) = content.decode().splitlines()
    document = json.loads(read)
    assert (document["custom_id"], document["response"]["body"]) == (end, {"t": end})


def test_row_without_a_result_cannot_be_written(messages: Messages) -> None:
    rows = [("a", "{}"), (None, "{}"), ("b", None), ("c", "[1]"), ("d", "{"), ("e", '{"x": "')]
    rows.append(("f", '{"logprob": -Infinity}'))
    errors = writer_for(WRITE).unwritable(table(*rows))  # type: ignore[attr-defined]
    assert sorted(errors) == [*range(1, len(rows))]
    messages.check(*errors.values())


def test_error_file_needs_no_memory_for_all_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, tables = 1000, 10

    def records(*_: Any) -> Iterator[pa.Table]:
        for number in reversed(range(tables)):
            ids = [f"0:{number * size + row}" for row in range(size)]
            others = {"step": "s", "error": "x" * 1000, "values": '{"custom_id": "\u2028"}'}
            yield pa.table({"id": ids, **{name: [text] * size for name, text in others.items()}})

    monkeypatch.setattr(openai_errors, "read_error_records", records)
    location = Location(str(tmp_path))
    layout = Layout("out", location, location / "_batchinference", location / "errors")
    tracemalloc.start()
    openai_errors.write_error_file(layout, "custom_id", [], 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    content = (tmp_path / "_errors.jsonl").read_bytes()
    ids = [json.loads(one)["id"] for one in content.decode().splitlines()]
    assert ids == [f"batch_req_{number:020d}" for number in range(size * tables)]
    assert peak < len(content) / 2
