"""Jobs that are interrupted, tables that others write, and endpoints that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from traps import endpoint, product
from traps.case import Case, Cases, Outcome, Refused, Right, Row
from traps.inputs import lines, tar
from traps.recordings import video

CASES = Cases("runs")
Runs = Callable[[Case, Path, product.Run], Outcome]
NOT_COMPARED = dict.fromkeys(
    ("ray", "daft", "datasets", "pandas"), "not compared: a script of several runs"
)


def interrupted(run_again: int = 1) -> Runs:
    """Return a function that runs a case until a row ends the job, and then to its end."""

    def runs(case: Case, directory: Path, run: product.Run) -> Outcome:
        broken = directory / "state/broken"
        broken.parent.mkdir()
        broken.touch()
        first = product.run_job(case, directory, run)
        if not first.error:
            return Outcome(error="the first run did not fail")
        broken.unlink()
        last = first
        for _ in range(run_again):
            last = product.run_job(case, directory, run)
        return last

    return runs


FAILING = {
    "name": "fail",
    "python": {
        "callable": "traps.steps:FailOnce",
        "constructorArgs": {"directory": "./state", "row": 7},
    },
}
EXPLODE = [
    {"name": "each", "python": {"callable": "traps.steps:numbers"}},
    {"name": "explode", "explode": {"column": "each"}},
]
EACH = [{"n": n, "each": n + more} for n in range(12) for more in (0, 1000)]
ONCE = [{"n": n} for n in range(12)]
faults = CASES.kind(
    "R38",
    "duplicates after a fault (tests kill processes)",
    peers=NOT_COMPARED,
    fields={"errors": {}},
)
faults(
    "CSV files whose rows are exploded",
    Right(EACH),
    read={"format": "csv"},
    files={f"{f}.csv": "n\n" + "".join(f"{3 * f + n}\n" for n in range(3)) for f in range(4)},
    steps=[FAILING, *EXPLODE],
    runs=interrupted(),
)
faults(
    "JSON, exploded before the fault",
    Right(EACH),
    read={"format": "json"},
    files={f"{f}.jsonl": lines(*({"n": 3 * f + n} for n in range(3))) for f in range(4)},
    steps=[*EXPLODE, FAILING],
    runs=interrupted(),
)
faults(
    "archives",
    Right(ONCE),
    read={"format": "webdataset"},
    files={f"{f}.tar": tar([(f"{3 * f + n}.txt", "x") for n in range(3)]) for f in range(4)},
    steps=[{"name": "n", "python": {"callable": "traps.steps:number_of_key"}}, FAILING],
    runs=interrupted(),
)
faults(
    "the frames of a video",
    Right(ONCE),
    read={"format": "video"},
    files={"a.mkv": video(12)},
    steps=[{"name": "n", "python": {"callable": "traps.steps:number_of_frame"}}, FAILING],
    runs=interrupted(),
)
faults(
    "a complete job that runs again, twice",
    Right(EACH),
    read={"format": "csv"},
    files={"a.csv": "n\n" + "".join(f"{n}\n" for n in range(12))},
    steps=[FAILING, *EXPLODE],
    runs=interrupted(3),
)


def iceberg_table(directory: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **iceberg_properties(directory)).load_table("n.t")


def iceberg_properties(directory: Path) -> dict[str, str]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{directory}/catalog.db",
        "warehouse": f"file://{directory}/warehouse",
    }


def _new_iceberg(directory: Path) -> None:
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", **iceberg_properties(directory))
    catalog.create_namespace("n")
    catalog.create_table("n.t", pa.schema([("n", pa.int64())])).append(pa.table({"n": [5000]}))


def _new_delta(directory: Path) -> None:
    import deltalake

    deltalake.write_deltalake(str(directory / "out"), pa.table({"n": [5000]}))


def _new_lance(directory: Path) -> None:
    import lance

    lance.write_dataset(pa.table({"n": [5000]}), str(directory / "out"))


def _delta_rows(directory: Path) -> list[Row]:
    import deltalake

    return list(deltalake.DeltaTable(str(directory / "out")).to_pyarrow_table().to_pylist())


def _lance_rows(directory: Path) -> list[Row]:
    import lance

    return list(lance.dataset(str(directory / "out")).to_table().to_pylist())


def _iceberg_rows(directory: Path) -> list[Row]:
    return list(iceberg_table(directory).scan().to_arrow().to_pylist())


def beside(rows: Callable[[Path], list[Row]]) -> Runs:
    """Return a function that runs a job while another writer adds rows to its table. The outcome
    has all rows of the table."""

    def runs(case: Case, directory: Path, run: product.Run) -> Outcome:
        output = {**case.output}
        if output["format"] == "iceberg":
            output |= {
                "table": "n.t",
                "catalog": {"name": "default", "properties": iceberg_properties(directory)},
            }
        done = product.run_job(case, directory, run, write={"path": "out", **output})
        if done.error:
            return done
        return replace(done, rows=rows(directory))

    return runs


def job_rows_once(first: bool = True) -> Callable[[Sequence[Row]], bool]:
    """Return whether each row of the job is in the table once, and each of the others."""

    def holds(rows: Sequence[Row]) -> bool:
        numbers = sorted(row["n"] for row in rows)
        own, others = [n for n in numbers if n < 1000], [n for n in numbers if n >= 1000]
        return (
            own == list(range(12))
            and len(others) == len(set(others)) > first
            and (5000 in others) == first
        )

    return holds


def writer(how: str) -> list[Row]:
    return [
        {
            "name": "beside",
            "python": {
                "callable": "traps.steps:WriteBeside",
                "constructorArgs": {"table": "./out", "how": how},
            },
            "batchSize": 3,
        }
    ]


ITEMS = {"read": {"format": "items", "items": [{"n": n} for n in range(12)]}}
tables = CASES.kind(
    "R39", "tables to which others write at the same time", peers=NOT_COMPARED, **ITEMS
)
tables(
    "others append to a Delta table",
    Right(holds=job_rows_once()),
    output={"format": "delta", "mode": "append"},
    write=_new_delta,
    steps=writer("delta"),
    runs=beside(_delta_rows),
)
tables(
    "others append to a Lance table",
    Right(holds=job_rows_once()),
    output={"format": "lance", "mode": "append"},
    write=_new_lance,
    steps=writer("lance"),
    runs=beside(_lance_rows),
)
tables(
    "others append to an Iceberg table",
    Right(holds=job_rows_once()),
    output={"format": "iceberg", "mode": "append"},
    write=_new_iceberg,
    steps=writer("iceberg"),
    runs=beside(_iceberg_rows),
)
tables(
    "others replace the rows of a Delta table",
    Right(holds=job_rows_once(False)),
    Right(
        holds=lambda rows: sorted(row["n"] for row in rows if row["n"] < 1000) == list(range(12))
    ),
    Refused("table|changed|conflict|overwr"),
    output={"format": "delta", "mode": "append"},
    write=_new_delta,
    steps=writer("overwrite"),
    runs=beside(_delta_rows),
)
tables(
    "others write files into the directory of Parquet",
    Right(
        holds=lambda rows: sorted(row["n"] for row in rows if row["n"] < 1000) == list(range(12))
    ),
    steps=writer("files"),
    runs=beside(lambda at: product.written(at / "out")),
)


def served(script: endpoint.Script) -> Runs:
    """Return a function that runs a case against an endpoint with this script."""

    def runs(case: Case, directory: Path, run: product.Run) -> Outcome:
        with endpoint.endpoint(script) as url:
            steps = [{**step, "model": {**step["model"], "url": url}} for step in case.steps]
            return product.run_job(case, directory, run, steps=steps)

    return runs


def by_daft(script: endpoint.Script, texts: Sequence[str]) -> Callable[[Path], list[Row]]:
    """Return how a user of Daft sends texts to an endpoint."""

    def read(_: Path) -> list[Row]:
        import daft
        from daft.ai.openai.provider import OpenAIProvider
        from daft.functions import prompt

        with endpoint.endpoint(script) as url:
            provider = OpenAIProvider(base_url=url, api_key="none")
            frame = daft.from_pydict({"t": list(texts)})
            answered = frame.with_column(
                "o", prompt(daft.col("t"), provider=provider, model="m", use_chat_completions=True)
            )
            return list(answered.to_pylist())

    return read


def request(api: str = "chat", **fields: Any) -> list[Row]:
    return [
        {
            "name": "ask",
            "model": {
                **{"runtime": "http", "api": api, "name": "m", "retries": 3},
                **{"inputs": {"t": "t"}, "output": "o", **fields},
            },
        }
    ]


def each(count: int, answer: endpoint.Answer, every: int = 5) -> endpoint.Script:
    """Return a script with this answer to every fifth text, the first times that it is sent."""
    return lambda text, time: answer if int(text[1:]) % every == 2 and time <= count else None


TEXTS = [f"t{n}" for n in range(20)]
ANSWERS = [{"t": text, "o": text.upper()} for text in TEXTS]
GOOD = [row for row in ANSWERS if int(row["t"][1:]) % 5 != 2]
LIMITED = endpoint.answer({"error": {"message": "too many requests"}}, 429, **{"Retry-After": "0"})
HALF = endpoint.answer(b'{"choices": [{"mess')
ERROR = endpoint.answer({"error": {"message": "out of memory", "code": 500}})
EMPTY = endpoint.chat(None)
CLOSED = (0, {}, b"")
ASKED: dict[str, Any] = {"read": {"format": "items", "items": [{"t": text} for text in TEXTS]}}
OTHERS = {**dict.fromkeys(("datasets", "pandas"), "no function for endpoints"), "ray": "needs vllm"}
broken = CASES.kind("R40", "endpoints that are overloaded or answer with nonsense", **ASKED)


def ask(title: str, script: endpoint.Script, *right: Any, **fields: Any) -> None:
    """Add a case for a script, also for Daft."""
    peers = {**OTHERS, "daft": by_daft(script, TEXTS)}
    broken(title, *right, steps=request(), runs=served(script), peers=peers, **fields)


ask("429 for every fifth text, once", each(1, LIMITED), Right(ANSWERS))
ask("half of an answer, once", each(1, HALF), Right(ANSWERS))
ask("half of an answer, always", each(99, HALF), Right(GOOD, failed=4, says="JSON"))
ask(
    "an error with the status 200",
    each(99, ERROR),
    Right(GOOD, failed=4, says="out of memory|choices|error"),
)
NULLS = [row if row in GOOD else {**row, "o": None} for row in ANSWERS]
ask(
    "an answer whose text is null",
    each(99, EMPTY),
    Right(GOOD, failed=4, says="content|null|text"),
    Right(NULLS),
)
ask("a connection that is closed, once", each(1, CLOSED), Right(ANSWERS))
broken(
    "an embedding with a null, and a short one",
    Right(
        [{"t": text, "o": [len(text), 1.0]} for text in TEXTS if int(text[1:]) % 5 != 2], failed=4
    ),
    steps=request("embeddings"),
    runs=served(
        lambda text, _: (
            each(99, endpoint.embedding(1.0, None), 10)(text, 1)
            or each(99, endpoint.embedding(1.0))(text, 1)
        )
    ),
    peers={**OTHERS, "daft": "not compared"},
)
