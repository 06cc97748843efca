"""Code that cannot be called as its step says is refused by reading its source.

What is refused fails when it is called, and what can be called is never refused."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from batchinference.pipeline.steps.code_checks.function_signatures import signature_problem
from batchinference.spec.python_step import PythonStep

BASE = """
class Base:
    def __init__(self, model, device="cpu"): pass
    def __call__(self, batch, top=1): return batch
"""
Fields = dict[str, Any]
CALL = "def __call__(self, batch): return batch"
REFUSED: list[tuple[str, Fields, str]] = [
    ("def f(): pass", {}, "line 1 does not take. Write 'def f(batch)'"),
    ("def f(): pass", {"method": "map"}, "Write 'def f(row)'"),
    ("def f(*, batch): pass", {}, "does not take"),
    ("def f(batch, lang): pass", {}, "needs lang. Set callArgs: {lang: ...}"),
    ("def f(batch, a, b=1, *, c, d=2): pass", {}, "needs a and c. Set callArgs: {a: ..., c: ...}"),
    ("def f(*batch, lang): pass", {}, "needs lang"),
    ("def f(batch, lang): pass", {"callArgs": {"lagn": 1}}, "; did you mean 'lang'?"),
    ("def f(batch): pass", {"callArgs": {"lang": 1}}, "callArgs.lang: "),
    ("def f(batch, **rest): pass", {"callArgs": {"batch": 1}}, "callArgs.batch: "),
    ("def f(batch, c, /, d=1): pass", {"callArgs": {"x": 1}}, "Its parameters are d"),
    ("def f(batch): pass", {"constructorArgs": {"x": 1}}, "Use callArgs"),
    ("class C: pass", {}, "has no method __call__. Add 'def __call__(self, batch)'"),
    ("class C:\n def forward(self, x): pass", {}, "has no method __call__"),
    ("class C:\n def predict_batch(self, x): pass", {}, "or set predictBatch"),
    ("class C(object):\n def __call__(self): pass", {}, "Write 'def __call__(self, batch)'"),
    ("class C:\n def __call__(batch): pass", {}, "Write 'def __call__(self, batch)'"),
    ("class C:\n def __call__(self, batch, k): pass", {}, "needs k. Set callArgs"),
    (f"class C:\n def __init__(self, m): pass\n {CALL}", {}, "needs m. Set constructorArgs"),
    (f"class C:\n def __init__(self, model): pass\n {CALL}", {"constructorArgs": {"modle": 1}},
     "constructorArgs.modle: 's:C' has no parameter 'modle' to set; did you mean 'model'?"),
    (f"class C:\n def __init__(self, m=1): pass\n {CALL}", {"constructorRefs": {"x": "os:name"}},
     "constructorRefs.x: "),
    (f"class C:\n {CALL}", {"constructorArgs": {"x": 1}}, "has no __init__ with parameters"),
    (f"{BASE}class C(Base): pass", {}, "needs model"),
    (f"{BASE}class C(Base): pass",
     {"constructorArgs": {"model": 1}, "callArgs": {"tpo": 1}}, "did you mean 'top'?"),
    ("class C:\n def __call__(self, x): pass",
     {"predictBatch": {"input": "a", "output": "b"}}, "has no method predict_batch"),
    ("f = lambda: 1", {}, "Write 'def f(batch)'"),
    ("f = lambda batch, lang: batch", {}, "needs lang"),
    ("import functools\ndef g(batch, lang): pass\nf = functools.partial(g, lnag=1)", {},
     "partial.lnag: 's:f' has no parameter 'lnag' to set; did you mean 'lang'?"),
    ("from functools import partial\ndef g(batch, lang, k): pass\nf = partial(g, lang=1)", {},
     "needs k. Set callArgs"),
    ("f = 5", {}, "is a number"),
    ("f = {'a': 1}", {}, "is a dict"),
    ("class D: pass\nf = D()", {}, "has no method __call__"),
    ("from dataclasses import dataclass\n@dataclass\nclass C:\n path: str\n size: int = 1\n "
     + CALL, {}, "needs path. Set constructorArgs: {path: ...}"),
    ("class C:\n def predict_batch(self): pass",
     {"predictBatch": {"input": "a", "output": "b"}}, "Write 'def predict_batch(self, values)'"),
]  # fmt: skip
ACCEPTED: list[tuple[str, Fields]] = [
    ("def f(batch): return batch", {}),
    ("def f(*batches): return batches", {}),
    ("def f(batch=None, lang='x'): return batch", {}),
    ("def f(batch, lang): return batch", {"callArgs": {"lang": 1}}),
    ("def f(batch, **rest): return batch", {"callArgs": {"lang": 1}}),
    ("def f(batch, /, **rest): return batch", {"callArgs": {"batch": 1}}),
    ("def f(batch, *rest, lang): return batch", {"callArgs": {"lang": 1}}),
    ("f = lambda batch: batch", {}),
    ("def f(): pass\nf = print", {}),
    ("import functools\ndef g(batch, lang): return batch\nf = functools.partial(g, lang=1)", {}),
    ("def add(f): return lambda batch: f(batch, 1)\n@add\ndef f(batch, lang): pass", {}),
    ("if True:\n def f(batch): pass\nelse:\n def f(): pass", {}),
    ("def f(): pass\nfrom os.path import *\nfrom builtins import print as f", {}),
    ("def f(): pass\nglobals()['f'] = print", {}),
    ("def f(batch, lang): pass\nf.__defaults__ = (1,)", {}),
    ("def f(): pass\ndef change():\n global f\n f = print\nchange()", {}),
    ("def f(): pass\nfor f in [print]: pass", {}),
    (f"class C:\n {CALL}", {}),
    ("class C: pass\ndef add(c): c.__call__ = lambda self, batch: batch\nadd(C)", {}),
    ("import builtins\nclass C: pass\n"
     "builtins.setattr(C, '__call__', lambda self, batch: batch)", {}),
    ("class C:\n locals()['__call__'] = lambda self, batch: batch", {}),
    (f"class C:\n def __init__(self, m, **rest): pass\n {CALL}",
     {"constructorArgs": {"m": 1, "x": 2}}),
    (f"{BASE}class C(Base): pass", {"constructorArgs": {"model": 1}, "callArgs": {"top": 2}}),
    (f"{BASE}class C(Base):\n def __init__(self): pass", {}),
    ("import contextlib\nclass C(contextlib.ContextDecorator): pass", {}),
    ("class M(type):\n def __call__(cls): return print\nclass C(metaclass=M):\n"
     " def __init__(self, m): pass", {}),
    ("class C:\n def __new__(cls, **rest): return print", {"constructorArgs": {"x": 1}}),
    ("class C:\n def __init__(self, m): pass\n def f(self, b): return b\n __call__ = f",
     {"constructorArgs": {"m": 1}}),
    ("from functools import partial\ndef g(lang, batch): return batch\nf = partial(g, 'x')", {}),
    ("class D:\n def __call__(self, batch): return batch\nf = D()", {}),
    (f"{BASE}C = Base", {"constructorArgs": {"model": 1}}),
    ("from dataclasses import dataclass\n@dataclass\nclass C:\n path: str\n size: int = 1\n "
     + CALL, {"constructorArgs": {"path": "x"}}),
    ("class C: pass\nC.__call__ = lambda self, batch: batch", {}),
    ("class C:\n @staticmethod\n def __call__(batch): return batch", {}),
    ("class C:\n if True:\n  def __call__(self, batch): return batch", {}),
    ("def keep(c):\n c.__init__ = lambda self, m: None\n return c\n@keep\nclass C:\n " + CALL,
     {"constructorArgs": {"m": 1}}),
    ("class A:\n def __init_subclass__(cls): cls.__call__ = lambda self, batch: 1\n"
     "class C(A): pass", {}),
    ("class C:\n def __init__(self): self.predict_batch = len",
     {"predictBatch": {"input": "a", "output": "b"}}),
    ("class C:\n def __getattr__(self, name): return len",
     {"predictBatch": {"input": "a", "output": "b"}}),
    ("class C:\n def predict_batch(self, values, k): return values",
     {"predictBatch": {"input": "a", "output": "b"}, "callArgs": {"k": 1}}),
    ("from dataclasses import dataclass\n@dataclass\nclass B:\n k: int\n@dataclass\nclass C(B):\n"
     " m: int = 2\n " + CALL, {"constructorArgs": {"k": 1}}),
    ("from dataclasses import dataclass\n@dataclass\nclass B:\n k: int\nclass C(B):\n " + CALL,
     {"constructorArgs": {"k": 1}}),
    ("from dataclasses import dataclass\nclass B:\n def __init__(self, m): pass\n@dataclass\n"
     "class C(B):\n k: int = 1\n " + CALL, {}),
    ("from dataclasses import KW_ONLY, dataclass\n@dataclass\nclass C:\n _: KW_ONLY\n k: int\n "
     + CALL, {"constructorArgs": {"k": 1}}),
    ("from dataclasses import dataclass\nfrom typing import ClassVar\n@dataclass\nclass C:\n"
     " k: ClassVar[int]\n " + CALL, {}),
    ("from dataclasses import dataclass, field\n@dataclass\nclass C:\n k: int = field(init=False)\n"
     " n: int = 1\n " + CALL, {"constructorArgs": {"n": 1}}),
]  # fmt: skip


def step_of(source: str, fields: Fields) -> PythonStep:
    name = "C" if "class C" in source or "C = " in source else "f"
    return PythonStep.model_validate({"callable": f"s:{name}", **fields})


def call(source: str, step: PythonStep) -> None:
    """Construct and call the code as a job does."""
    module: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "s", "exec", dont_inherit=True), module)
    target = module[step.callable.removeprefix("s:")]
    if isinstance(target, type):
        target = target(**step.constructor_args, **step.constructor_refs)
    elif step.constructor_args:
        raise TypeError("not a class")
    method = target if step.predict_batch is None else target.predict_batch
    method([], **step.call_args)


@pytest.mark.parametrize(("source", "fields", "part"), REFUSED)
def test_code_that_cannot_be_called_is_refused(source: str, fields: Fields, part: str) -> None:
    step = step_of(source, fields)
    problem = signature_problem(step, ast.parse(source))
    assert problem is not None
    assert part in problem
    with pytest.raises((TypeError, AttributeError)):
        call(source, step)


@pytest.mark.parametrize(("source", "fields"), ACCEPTED)
def test_code_that_can_be_called_is_accepted(source: str, fields: Fields) -> None:
    step = step_of(source, fields)
    call(source, step)
    assert signature_problem(step, ast.parse(source)) is None
