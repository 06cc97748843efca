"""Mistakes in the files and paths that a job reads and writes."""

from __future__ import annotations

import gzip
import io
import json
import zipfile

from support.mistakes import CSV, Files, Mistake

READ = "format: csv\n    paths: [./reviews.csv]"
PATHS = "[./reviews.csv]"
WRITE = "format: parquet\n    path: ./out"
PARQUET = b"PAR1\x15\x04" + bytes(50)
HEADLESS = CSV.partition("\n")[2]


def _workbook() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("xl/workbook.xml", "<a/>")
    return file.getvalue()


def _path(wrong: str, says: str, files: Files | None = None) -> Mistake:
    """Return a mistake in an input path."""
    return Mistake(f"['{wrong}']", PATHS, says=says, files=files or {})


def _content(name: str, wrong: str | bytes, right: str | bytes, says: str) -> Mistake:
    """Return a mistake in the content of a file, which is corrected."""
    step = f"format: {'json' if 'json' in name else 'csv'}\n    paths: [./{name}]"
    return Mistake(step, step, READ, {name: wrong}, {name: right}, says)


def _option(content: str | bytes, right: str) -> Mistake:
    """Return a file that needs an option of CSV."""
    read = "format: csv\n    paths: [./a.csv]"
    name = right.partition(":")[0]
    says = f"read.options.{name}"
    return Mistake(read, f"{read}\n    options: {{{right}}}", READ, {"a.csv": content}, says=says)


def _format(wrong: str, right: str, says: str | None = None) -> Mistake:
    files = {"d/a.csv": CSV} if right == "csv" else {"d/a.jsonl": '{"text": "a"}\n'}
    read = "format: {}\n    paths: [./d]"
    return Mistake(read.format(wrong), read.format(right), READ, files, says=says or f"'{right}'")


def _write(
    wrong: str, right: str = "path: ./out", says: str | None = None, files: Files | None = None
) -> Mistake:
    """Return a mistake in the fields of the output."""
    form = "" if wrong.startswith("format") else "format: parquet\n    "
    right_form = "" if right.startswith("format") else "format: parquet\n    "
    return Mistake(form + wrong, right_form + right, WRITE, files or {}, says=says or right)


def _url(wrong: str, says: str) -> Mistake:
    """Return a mistake in the address of a database."""
    fields = "format: sql\n    path: ./w\n    table: t\n    url: "
    return _write(fields + wrong, f"{fields}sqlite:///a.db", says)


MISTAKES = {
    "a misspelled file": _path("./review.csv", "'reviews.csv'"),
    "another case": _path("./Reviews.csv", "'reviews.csv'"),
    "a misspelled directory": _path("./dat/a.csv", "'data'", {"data/a.csv": CSV}),
    "a glob that matches nothing": _path("./review-*.csv", "holds job.yaml, model, reviews.csv"),
    "braces": _path("./{a,b}.csv", "as an item of the list"),
    "two paths in one text": _path("./reviews.csv, ./b.csv", "as an item of the list"),
    "a Windows path": _path("C:\\data\\reviews.csv", "a path with '/'"),
    "a backslash": _path("data\\reviews.csv", "'/'"),
    "$HOME": _path("$HOME/reviews.csv", "Write ~ instead of $HOME"),
    "${day}": _path("./${day}.csv", "Write {{ params.day }} instead of ${day}"),
    "env in braces": _path("./{{ env.DAY }}.csv", "Write {{ params.day }} instead of"),
    "a variable of Windows": _path("./%day%.csv", "Write {{ params.day }} instead of %day%"),
    "a drive": _path("C:/data/a.csv", "no drive"),
    "s3 without a bucket": _path("s3://", "s3://BUCKET/PATH"),
    "one slash": _path("s3:/bucket/a.csv", "Write s3://bucket/a.csv"),
    "s3a": _path("s3a://bucket/a.csv", "Write s3://bucket/a.csv"),
    "abfss": _path("abfss://box@me.dfs.core.windows.net/a.csv",
                   "Write az://box/a.csv, and set storage: {endpoint:"),
    "an address of S3 in the web": _path("https://b.s3.amazonaws.com/a.csv", "Write s3://b/a.csv"),
    "dbfs": _path("dbfs:/data/a.csv", "Write /dbfs/data/a.csv"),
    "ftp": _path("ftp://host/a.csv", "a path or one of"),
    "https": _path("https://example.com/a.csv", "Download it"),
    "a password in an address": _path("s3://KEY:SECRET@bucket/a.csv", "in the environment"),
    "a directory without files": _path("./empty", "Choose another path", {"empty/.keep": ""}),
    "a directory of other files": _path("./docs", ".doc 1", {"docs/a.doc": ""}),
    "a Delta table as files": Mistake(
        "format: parquet\n    paths: [./sales]", READ, says="read.format to delta",
        files={"sales/a.parquet": "", "sales/_delta_log/0.json": "{}"},
    ),
    "a workbook as CSV": _content("a.csv", _workbook(), CSV, "as CSV"),
    "a Parquet file as CSV": _content("a.csv", PARQUET, CSV, "format parquet"),
    "an HTML page as CSV": _content("a.csv", "<!doctype html><html>404", CSV, "Download"),
    "a pointer of Git LFS": _content(
        "a.csv", "version https://git-lfs.github.com/spec/v1\noid sha256:aa\n", CSV, "git lfs pull"
    ),
    "two columns of one name": _content("a.csv", "text,text\na,b\n", "text,text2\na,b\n", "Rename"),
    "gzip without its ending": Mistake(
        READ.replace("reviews", "a"), READ.replace("reviews.csv", "a.csv.gz"), READ,
        {"a.csv": gzip.compress(CSV.encode())}, {"a.csv.gz": gzip.compress(CSV.encode())},
        "end with .gz",
    ),
    "the ending of gzip without gzip": Mistake(
        READ.replace("reviews.csv", "a.csv.gz"), READ.replace("reviews", "a"), READ,
        {"a.csv.gz": CSV}, {"a.csv": CSV}, "/work/a.csv",
    ),
    "semicolons": _option(CSV.replace(",", ";"), "delimiter: ';'"),
    "tabs": _option(CSV.replace(",", "\t"), 'delimiter: "\\t"'),
    "delimiter: tab": Mistake(
        f"{PATHS}\n    options: {{delimiter: tab}}", f'{PATHS}\n    options: {{delimiter: "\\t"}}',
        PATHS, {"reviews.csv": CSV.replace(",", "\t")}, says='Write "\\t"',
    ),
    "comment: //": Mistake(f"{PATHS}\n    options: {{comment: '//'}}",
                           f"{PATHS}\n    options: {{comment: '/'}}", PATHS,
                           says="at most 1 character"),
    "latin-1": _option("id,text,n\n1,Schöne Grüße,3\n2,für Schüler,4\n".encode("latin-1"),
                       "encoding: cp1252"),
    "UTF-16": _option(CSV.encode("utf-16"), "encoding: utf-16"),
    "no header": _option(HEADLESS, "columnNames: [id, text, n, my col]"),
    "a comment before the header": _option(f"# export\n{CSV}", "comment: '#'"),
    "JSON as CSV": Mistake(
        READ.replace("reviews", "a"), READ.replace("csv", "json", 1).replace("reviews", "a"), READ,
        {"a.csv": '{"text": "a", "n": 1}\n'}, says="format to json",
    ),
    "CSV as Parquet": Mistake(READ.replace("csv", "parquet", 1), READ, says="read.format to csv"),
    "CSV as JSON": Mistake(READ.replace("csv", "json", 1), READ, says="read.format to csv"),
    "a delimiter that the file does not have": Mistake(
        f"{PATHS}\n    options: {{delimiter: ';'}}", f"{PATHS}\n    options: {{delimiter: ','}}",
        PATHS, says="Set it to ','",
    ),
    "a wrong column type": Mistake(
        f"{PATHS}\n    options: {{types: {{n: integer}}}}",
        f"{PATHS}\n    options: {{types: {{n: int64}}}}", PATHS, says="int64",
    ),
    "a type of an unknown column": Mistake(
        f"{PATHS}\n    options: {{types: {{m: int64}}}}",
        f"{PATHS}\n    options: {{types: {{n: int64}}}}", PATHS, says="id, text, n",
    ),
    "1e5 rows": Mistake(f"{PATHS}\n    options: {{limit: 1e5}}",
                        f"{PATHS}\n    options: {{limit: 100000}}", PATHS, says="Write 100000"),
    "| as the delimiter": Mistake(
        f"{PATHS}\n    options:\n      delimiter: |", f"{PATHS}\n    options: {{delimiter: '|'}}",
        PATHS, {"reviews.csv": CSV.replace(",", "|")}, says="'|', in quotes",
    ),
    "decimal(10,2)": Mistake(
        f"{PATHS}\n    options: {{types: {{n: decimal(10,2)}}}}",
        f"{PATHS}\n    options: {{types: {{n: 'decimal<10, 2>'}}}}", PATHS, says="'decimal<10, 2>'",
    ),
    "datetime": Mistake(
        f"{PATHS}\n    options: {{types: {{day: datetime}}}}",
        f"{PATHS}\n    options: {{types: {{day: timestamp}}}}", PATHS, says="Use timestamp",
        files={"reviews.csv": "id,text,day\n1,a good book,2024-01-01\n"},
    ),
    "varchar(20)": Mistake(
        f"{PATHS}\n    options: {{types: {{text: varchar(20)}}}}",
        f"{PATHS}\n    options: {{types: {{text: string}}}}", PATHS, says="Use string",
    ),
    "null as a null value": Mistake(
        f"{PATHS}\n    options: {{nullValues: [null]}}",
        f"{PATHS}\n    options: {{nullValues: ['null']}}", PATHS, says="'null' in quotes",
    ),
    "sep": Mistake(f"{PATHS}\n    options: {{sep: ','}}",
                   f"{PATHS}\n    options: {{delimiter: ','}}", PATHS, says="'delimiter'"),
    "usecols": Mistake(f"{PATHS}\n    options: {{usecols: [n]}}", PATHS, says="selectColumns: ["),
    "a key of a store": Mistake(f"{PATHS}\n    storage: {{accessKey: a}}", PATHS, says="envFrom"),
    "header: true": Mistake(f"{PATHS}\n    options: {{header: true}}", PATHS, says="is the header"),
    "delimiter in read": Mistake(f"{PATHS}\n    delimiter: ','",
                                 f"{PATHS}\n    options: {{delimiter: ','}}", PATHS,
                                 says="options: {delimiter: ...}"),
    "jsonl": _format("jsonl", "json"),
    "cvs": _format("cvs", "csv"),
    "xlsx": _format("xlsx", "csv", "Use csv"),
    "xlsx as the output": _write("format: xlsx\n    path: ./out", "format: csv\n    path: ./out",
                                 "Use csv"),
    "postgres as the output": _write(
        "format: postgres\n    path: ./out",
        "format: sql\n    path: ./out\n    url: sqlite:///a.db\n    table: t", "'sql'",
    ),
    "a drive in the output": _write("path: C:/out", says="a path with '/'"),
    "a template in the output": _write("path: './{{ date }}'", says="{{ params.date }}"),
    "paths in write": _write("paths: [./out]", says="Write path: ./out"),
    "a size as rows": _write("path: ./out\n    rowsPerFile: 128MB",
                             "path: ./out\n    rowsPerFile: 100000", "and not a size"),
    "the output is a file": _write("path: ./x", says="Choose another path", files={"x": ""}),
    "the output has other files": _write("path: ./x", says="Choose another path",
                                         files={"x/old.parquet": ""}),
    "the output contains the input": _write("path: .", says="spec.write.path"),
    "a Windows path as the output": _write("path: 'C:\\out'", says="a path with '/'"),
    "$HOME in the output": _write("path: $HOME/out", says="Write ~ instead of $HOME"),
    "an address of the web as the output": _write(
        "path: https://example.com/out", says="Use a path or one of file://, s3://"
    ),
    "overwrite: true": _write("path: ./out\n    overwrite: true",
                              "path: ./out\n    mode: overwrite", "mode: overwrite"),
    "replace": _write("path: ./out\n    mode: replace", "path: ./out\n    mode: overwrite",
                      "'overwrite'"),
    "merge in Parquet": _write("path: ./out\n    mode: merge", "path: ./out\n    mode: append",
                               "delta"),
    "upsert in Delta": _write("format: delta\n    path: ./t\n    mode: upsert",
                              "format: delta\n    path: ./t\n    mode: merge\n    key: [id]",
                              "'merge'"),
    "merge without a key": _write("format: delta\n    path: ./t\n    mode: merge",
                                  "format: delta\n    path: ./t\n    mode: merge\n    key: [id]",
                                  "key"),
    "keys": _write("format: delta\n    path: ./t\n    mode: merge\n    keys: [id]",
                   "format: delta\n    path: ./t\n    mode: merge\n    key: [id]", "'key'"),
    "a password in the address of a database": _url("postgresql://me:secret@h/db", "urlEnv"),
    "jdbc": _url("'jdbc:sqlite:///a.db'", "'jdbc:'"),
    "two slashes": _url("sqlite://a.db", "sqlite:///FILE"),
    "no table": _write("format: sql\n    path: ./w\n    url: sqlite:///a.db",
                       "format: sql\n    path: ./w\n    url: sqlite:///a.db\n    table: t",
                       "Add table: "),
    "partitionBy as a text": _write("path: ./out\n    partitionBy: n",
                                    "path: ./out\n    partitionBy: [n]", "[n]"),
    "partitionBy of an unknown column": _write(
        "path: ./out\n    partitionBy: [m]", "path: ./out\n    partitionBy: [n]", "id, text, n"
    ),
    "partitionBy of a vector": _write(
        "path: ./out\n    partitionBy: [embedding]", "path: ./out", "or remove partitionBy"
    ),
    "partitionBy of an expression": _write(
        "path: ./out\n    partitionBy: ['n % 10']", "path: ./out", "addColumns"
    ),
    "10k rows": _write("path: ./out\n    rowsPerFile: 10k", "path: ./out\n    rowsPerFile: 10000",
                       "10000"),
    "zip": _write("path: ./out\n    compression: zip", "path: ./out\n    compression: gzip",
                  "'gzip'"),
    "error records in the output": Mistake(
        f"{WRITE}\n  errors: {{maxRows: 1, path: ./out/errors}}",
        f"{WRITE}\n  errors: {{maxRows: 1, path: ./errors}}", WRITE, says="another errors.path",
    ),
    "a row of a table in JSON of requests": Mistake(
        READ.replace("csv", "openaiBatch", 1).replace("reviews.csv", "a.jsonl"),
        READ, says="Set read.format to json", files={"a.jsonl": json.dumps({"text": "a"}) + "\n"},
    ),
}  # fmt: skip
