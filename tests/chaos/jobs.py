"""The jobs, and the expected result of each of their rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from chaos.inputs import FORMATS, ROWS
from chaos.plans import drawn
from chaos.store import CODE_MOUNT, CODE_VOLUME, PROXY
from support.cluster.object_store import BUCKET
from support.documents.minimal import Document, document

Pair = tuple[int, int]
"""An output row: N of the input's `row N`, and its number among the output rows of that row."""
NAMES = {"webdataset": [{"name": "names", "renameColumns": {"txt": "text"}}]}
WRITES = ("parquet", "json", "csv", "delta")
POOL = {"replicas": {"max": 1}}


def _passing(seconds: float) -> Document:
    """Return a step that counts rows. It takes this time for 200 rows, and needs almost no CPU."""
    arguments = {"seconds": seconds, "last": f"row {ROWS - 1}"}
    python = {"callable": "job_steps:Passing", "constructorArgs": arguments}
    return {"name": "passing", "python": python, "batchSize": 200}


PASSING = _passing(0.3) | POOL
"""Takes half a minute for all rows."""
UNPOOLED = _passing(0.9)
"""Takes half a minute for all rows in the three tasks that the first worker runs at a time."""
SAME = {"name": "same", "python": {"callable": "job_steps:Same"}, "batchSize": 150, **POOL}
ASK = {
    "name": "ask",
    "model": {
        "runtime": "vllm",
        "source": CODE_MOUNT["mountPath"],
        "inputs": {"question": "text"},
        "output": "answer",
        "chat": False,
    },
    "resources": {"gpu": 0},
}
"""A fake engine, whose answer is the reversed text."""
POOLS: dict[str, Callable[[list[Document]], list[Document]]] = {
    "no pool": lambda steps: [UNPOOLED, *steps],
    "one pool": lambda steps: [PASSING, *steps],
    "two pools": lambda steps: [PASSING, *steps, SAME],
    "vLLM": lambda steps: [PASSING, ASK, *steps],
}
"""The steps of each kind of job, given the steps of its shape."""


def is_bad(n: int) -> bool:
    return n % 100 == 13


@dataclass(frozen=True)
class Shape:
    """The steps of a job. `row N` has to become `parts(N)`. A failed row still has the output rows
    `parts_of_bad(N)`."""

    name: str
    steps: list[Document]
    parts: Callable[[int], list[int]]
    parts_of_bad: Callable[[int], list[int]] = lambda n: []


def _own(name: str, method: str) -> Document:
    return {"name": name, "python": {"callable": f"job_steps:{name}", "method": method}}


SHAPES = (
    Shape("rows become several or none", [_own("several", "flatMap")],
          lambda n: list(range(n % 4))),
    Shape("filter", [{"name": "most", "filter": "not endswith(text, '0')"}, _own("single", "map")],
          lambda n: [0] if n % 10 else []),
    Shape("explode", [_own("listed", "map"), {"name": "each", "explode": {"column": "part"}}],
          lambda n: list(range(1 + n % 3))),
    Shape("rows fail in part", [_own("copies", "flatMap"), _own("checked", "map")],
          lambda n: [0, 1, 2], lambda n: [0, 2]),
)  # fmt: skip


@dataclass(frozen=True)
class Job:
    name: str
    reads: str
    pools: str
    shape: Shape
    writes: str

    @property
    def output(self) -> str:
        """The key in the bucket."""
        return f"out/{self.name}"

    @property
    def summary(self) -> str:
        return f"{self.reads}, {self.pools}, {self.shape.name}, {self.writes}"

    def rows(self) -> Counter[Pair]:
        """Return the rows that have to be in the output."""
        parts = {True: self.shape.parts_of_bad, False: self.shape.parts}
        return Counter((n, part) for n in range(ROWS) for part in parts[is_bad(n)](n))

    def errors(self) -> Counter[int]:
        """Return the rows that have to fail."""
        return Counter(filter(is_bad, range(ROWS)))

    def counts(self) -> dict[str, int]:
        """Return the counts that have to be in the status."""
        rows, errors = self.rows(), self.errors()
        kept = {n for n, _ in rows} | set(errors)
        # rows without output rows count as filtered
        return {"read": ROWS, "written": rows.total(), "failed": errors.total(),
                "filtered": ROWS - len(kept), "warned": 0, **self._tokens()}  # fmt: skip

    def _tokens(self) -> dict[str, int]:
        """Return the numbers of tokens. A token is a letter, and half of each row is cached."""
        if self.pools != "vLLM":
            return {}
        tokens = [len(f"row {n}") for n in range(ROWS)]
        cached = sum(count // 2 for count in tokens)
        return {"inputTokens": sum(tokens), "cachedTokens": cached, "outputTokens": sum(tokens)}

    def document(self) -> Document:
        return document(
            self.name,
            read={"format": self.reads, "paths": [f"s3://{BUCKET}/in/{self.reads}/"]},
            steps=[*NAMES.get(self.reads, []), *POOLS[self.pools](self.shape.steps)],
            write={"format": self.writes, "path": f"s3://{BUCKET}/{self.output}/",
                   "columns": ["number", "part"]},
            errors={"maxPercent": 5},
            retry={"maxAttempts": 20, "backoff": {"initial": "1s", "max": "5s"}},
            cluster={"volumes": [CODE_VOLUME], "volumeMounts": [CODE_MOUNT],
                     "env": self._environment()},
        )  # fmt: skip

    def _environment(self) -> list[dict[str, str]]:
        variables = {"PYTHONPATH": CODE_MOUNT["mountPath"], "CHAOS_JOB": self.name,
                     "AWS_ENDPOINT_URL": PROXY}  # fmt: skip
        return [{"name": name, "value": value} for name, value in variables.items()]


def jobs(count: int, seed: int) -> list[Job]:
    """Return jobs that differ in format, pools, steps and output.

    Each value of these is drawn once before any is drawn again.
    """
    random = Random(seed)
    fields = (drawn(random, values) for values in ([*FORMATS], [*POOLS], SHAPES, WRITES))
    combinations = zip(range(count), *fields, strict=False)
    return [Job(f"chaos-{number:02d}", *values) for number, *values in combinations]
