"""Functions and classes of a session as code of steps: by value, with a hash of their content."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from batchinference import Job
from batchinference.pipeline.runtimes import load_callable
from batchinference.pipeline.steps.code_hashes import code_of
from batchinference.spec import SpecError
from plugins.messages import Messages
from support.documents.yaml_files import read_yaml

READ, WRITE = {"format": "text", "paths": ["in"]}, {"format": "parquet", "path": "out"}


def session(source: str, filename: str = "/tmp/ipykernel_1/1.py") -> dict[str, Any]:
    """Return the variables of a session that has run this code."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, filename, "exec", dont_inherit=True), variables)
    return variables


def job_of(code: Any, **step: Any) -> Job:
    return Job(READ, WRITE, [{"name": "own", "python": {"callable": code, **step}}])


def hash_of(source: str, name: str = "f") -> str:
    job = job_of(session(source)[name])
    with job.prepared():
        (value,) = code_of(job.resource.spec).values()
    return value


def test_a_function_and_what_it_uses_are_taken_by_value() -> None:
    variables = session("import re\nk = 2\ndef g(x): return x * k\ndef f(row): return g(row)\n")
    job = job_of(variables["f"])
    variables["k"] = 3
    with job.prepared():
        assert load_callable(job.resource.spec.steps[0].python.callable)(5) == 10


def test_jobs_of_a_session_keep_their_own_code() -> None:
    first, second = (job_of(session(f"def f(row): return {n}")["f"]) for n in (1, 2))
    for job, value in ((first, 1), (second, 2), (first, 1)):
        with job.prepared():
            assert load_callable(job.resource.spec.steps[0].python.callable)(0) == value


def test_code_of_a_module_is_named_by_its_path() -> None:
    job = job_of(json.dumps)
    assert job.resource.spec.steps[0].python.callable == "json:dumps"
    assert job.code is None


def test_names_show_whether_code_is_a_class_and_are_unique() -> None:
    variables = session(
        "class lower:\n  def __call__(self, row): pass\n"
        "def Upper(row): pass\n"
        "pair = [lambda row: 1, lambda row: 2]\n"
    )
    codes = [variables["lower"], variables["Upper"], *variables["pair"], variables["Upper"]]
    steps = [{"name": f"s{at}", "python": {"callable": code}} for at, code in enumerate(codes)]
    result = Job(READ, WRITE, steps).resource.spec.steps
    assert [step.python.callable.split(":")[1] for step in result] == [
        *("Class_lower", "upper", "function", "function_2", "upper")
    ]
    assert [step.python.is_class for step in result] == [True, False, False, False, False]


SAME, CHANGED = read_yaml(Path(__file__).with_name("code_pairs.yaml")).values()


@pytest.mark.parametrize(("first", "second"), SAME.values(), ids=SAME)
def test_code_that_computes_the_same_has_the_same_hash(first: str, second: str) -> None:
    assert hash_of(first) == hash_of(second)


@pytest.mark.parametrize(("first", "second"), CHANGED.values(), ids=CHANGED)
def test_changed_code_has_another_hash(first: str, second: str) -> None:
    assert hash_of(first) != hash_of(second)


@pytest.mark.parametrize(
    "source",
    [
        "def f(x):\n from own_utils import g\n return g(x)",
        "def f(x):\n import own_utils as u\n return [u.g(y) for y in x]",
        "def f(x): return (lambda: helper())()\ndef helper():\n from own_utils import g\n return g",
        "class f:\n def __init__(s):\n  from own_package import part\n  s.g = part.g\n"
        " def __call__(s, x): return s.g(x)",
    ],
)
def test_a_changed_module_that_code_imports_when_it_runs_is_another_hash(
    source: str, tmp_path: Path
) -> None:
    (tmp_path / "own_package").mkdir()
    hashes = set()
    for value in (1, 1, 2):
        for file in ("own_utils.py", "own_package/__init__.py", "own_package/part.py"):
            text = "" if "init" in file else f"def g(x): return {value}\n"
            (tmp_path / file).write_text(text)
        step = {"name": "own", "python": {"callable": session(source)["f"]}}
        job = Job(READ, WRITE, [step], directory=tmp_path)
        with job.prepared():
            hashes |= set(code_of(job.resource.spec).values())
    assert len(hashes) == 2


def test_a_decorator_may_give_an_argument_itself() -> None:
    variables = session(
        "import functools\n"
        "def d(g): return functools.wraps(g)(lambda batch: g(batch, 1))\n"
        "@d\ndef f(batch, k): return batch\n"
    )
    assert job_of(variables["f"]).code is not None


RICH = """
import abc, dataclasses, enum, functools, re, numpy as np
K, PATTERN, WORDS, TABLE = {"a", "b"}, re.compile("x"), frozenset("abc"), np.arange(9)
class Kind(enum.Enum): A = 1
@dataclasses.dataclass
class Data: x: int = 3
class Base(abc.ABC):
    @abc.abstractmethod
    def run(self): ...
class f(Base):
    @staticmethod
    def s(x): return Kind.A, Data(x), x in {"q", "r"}
    @classmethod
    def c(cls): return cls.s(1)
    def run(self): return super().__init__(), PATTERN, WORDS, K, TABLE
    def __call__(self, row): return f.c(), self.run(), functools.partial(again, 1)
def again(n, x): return again(n - 1, x) if n else None
"""


def test_hash_is_the_same_in_another_process() -> None:
    code = (
        "import sys; from batchinference import Job; from batchinference.pipeline.steps."
        f"code_hashes import code_of\nexec({RICH!r})\n"
        f"job = Job({READ}, {WRITE}, [dict(name='own', python=dict(callable=f))])\n"
        "with job.prepared(): print(*code_of(job.resource.spec).values())"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code],
            *(), capture_output=True, text=True, check=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert hashes == {hash_of(RICH) + "\n"}


def test_a_step_module_that_has_changed_is_imported_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = list(sys.path)
    for value in (1, 2):
        (tmp_path / "edited_code.py").write_text(f"def f(row): return {value}\n")
        job = Job(READ, WRITE, [{"name": "own", "python": {"callable": "edited_code:f"}}],
                  directory=tmp_path)  # fmt: skip
        with job.prepared():
            assert load_callable("edited_code:f")(0) == value
    assert sys.path == path


def test_code_of_this_session_is_in_no_file(messages: Messages) -> None:
    job = job_of(session("def f(row): return row")["f"])
    assert "callable: notebook_f:f" in job._repr_html_()
    with messages.raises(SpecError):
        job.to_yaml()


REFUSED = {
    "lock": ("import threading\nlock = threading.Lock()\ndef f(x): return lock", {}),
    "closure": ("def m():\n  rows = (n for n in [1])\n  return lambda x: rows\nf = m()", {}),
    "no parameter": ("def f(): return 1", {}),
    "two parameters": ("def f(batch, size): return batch", {}),
    "unknown argument": ("def f(batch): return batch", {"callArgs": {"size": 1}}),
    "constructor": ("class f:\n def __init__(self, a): pass\n def __call__(self, x): pass", {}),
    "no call": ("class f: pass", {}),
    "method without batch": ("class f:\n def __call__(self): pass", {}),
}


@pytest.mark.parametrize(("source", "step"), REFUSED.values(), ids=REFUSED)
def test_code_that_cannot_run_elsewhere_is_refused(
    source: str, step: dict[str, Any], messages: Messages
) -> None:
    with messages.raises(SpecError):
        job_of(session(source)["f"], **step)
