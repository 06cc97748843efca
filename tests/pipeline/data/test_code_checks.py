"""Code of the user that cannot be imported, called or used is refused by reading its source.

What is refused fails when it runs, and what can run is never refused. No module is run."""

from __future__ import annotations

import ast
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.steps.code_checks.function_signatures import (
    columns_of_code,
    factory_problem,
    signature_problem,
)
from batchinference.pipeline.steps.code_checks.imports import check_callable
from batchinference.pipeline.steps.transform import as_result
from batchinference.pipeline.steps.user_code import UserCode, python_transform
from batchinference.spec.python_step import PythonStep

BASE = """
class Base:
    def __init__(self, model, device="cpu"): pass
    def __call__(self, batch, top=1): return batch
"""
Fields = dict[str, Any]
CALL = "def __call__(self, batch): return batch"
WRONG_SIGNATURES: list[tuple[str, Fields, str]] = [
    ("def f(): pass", {"method": "map"}, "Write 'def f(row)'"),
    ("def f(*, batch): pass", {}, "does not take"),
    ("def f(batch, a, b=1, *, c, d=2): pass", {}, "needs a and c. Set callArgs: {a: ..., c: ...}"),
    ("def f(*batch, lang): pass", {}, "needs lang"),
    ("def f(batch): pass", {"callArgs": {"lang": 1}}, "callArgs.lang: "),
    ("def f(batch, **rest): pass", {"callArgs": {"batch": 1}}, "callArgs.batch: "),
    ("def f(batch, c, /, d=1): pass", {"callArgs": {"x": 1}}, "Its parameters are d"),
    ("class C:\n def predict_batch(self, x): pass", {}, "or set predictBatch"),
    ("class C(object):\n def __call__(self): pass", {}, "Write 'def __call__(self, batch)'"),
    ("class C:\n def __call__(self, batch, k): pass", {}, "needs k. Set callArgs"),
    (f"class C:\n def __init__(self, model): pass\n {CALL}", {"constructorArgs": {"modle": 1}},
     "constructorArgs.modle: 's:C' has no parameter 'modle' to set; did you mean 'model'?"),
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
RIGHT_SIGNATURES: list[tuple[str, Fields]] = [
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


@pytest.mark.parametrize(("source", "fields", "part"), WRONG_SIGNATURES)
def test_code_that_cannot_be_called_is_refused(source: str, fields: Fields, part: str) -> None:
    step = step_of(source, fields)
    problem = signature_problem(step, ast.parse(source))
    assert problem is not None
    assert part in problem
    with pytest.raises((TypeError, AttributeError)):
        call(source, step)


@pytest.mark.parametrize(("source", "fields"), RIGHT_SIGNATURES)
def test_code_that_can_be_called_is_accepted(source: str, fields: Fields) -> None:
    step = step_of(source, fields)
    call(source, step)
    assert signature_problem(step, ast.parse(source)) is None


RUNS = "raise AssertionError('the module was run')\n"
FUNCTION = RUNS + "def f(batch): return batch\n"
WRONG_IMPORTS = [
    ({"own_a.py": f"import own_b\n{FUNCTION}", "own_b.py": "from .own_c import x"}, "own_a:f",
     "own_b.py, line 1: 'from .own_c import x' needs a package"),
    ({"own_a.py": f"import nunpy\n{FUNCTION}"}, "own_a:f",
     "imports 'nunpy', which is not installed; did you mean 'numpy'?"),
    ({"own_a.py": f"from math import sqroot\n{FUNCTION}"}, "own_a:f",
     "line 1 imports 'sqroot', which 'math' lacks; did you mean 'sqrt'?"),
    ({"own_a.py": ""}, "own_a:f", "own_a.py has no 'f'. Define it"),
    ({"own_a.py": "".join(f"{name} = 1\n" for name in "ABCDEGHIJKLMNO")}, "own_a:f",
     "L, M and 2 more. Use one of them"),
    ({"own_p/__init__.py": RUNS}, "own_p.steps:f", "there is no module 'own_p.steps'"),
]  # fmt: skip
RIGHT_IMPORTS = {
    "module of a package": {"own_p/__init__.py": RUNS, "own_p/steps.py": FUNCTION},
    "module of a directory": {"own_p/steps.py": FUNCTION},
    "relative import in a package": {
        **{"own_p/__init__.py": RUNS, "own_p/other.py": RUNS},
        "own_p/steps.py": f"from .other import x\n{FUNCTION}",
    },
    "modules that import each other": {
        **{"own_p/steps.py": f"import own_b\n{FUNCTION}", "own_b.py": "import own_c"},
        "own_c.py": "import own_b",
    },
    "import that may fail": {
        "own_p/steps.py": f"try:\n from .x import y\nexcept ImportError: pass\n{FUNCTION}"
    },
    "name that a function sets": {
        "own_p/steps.py": f"{RUNS}def make():\n global f\n f = print\nmake()"
    },
    **{
        f"imports after {start}": {
            "own_p/steps.py": f"import own_b\n{FUNCTION}",
            "own_b.py": f"{start}\nimport own_lib",
        }
        for start in (
            "import sys\nsys.path.append('lib')",
            "import sys\nsys.modules['own_lib'] = sys",
        )
    },
    "import after a module that changes the path": {
        **{"own_p/steps.py": f"import own_b, own_lib\n{FUNCTION}", "own_b.py": "import own_c"},
        "own_c.py": "import sys\nsys.path.append('lib')",
    },
    **{
        f"relative import below {start}": {
            "own_p/steps.py": f"import own_b\n{FUNCTION}",
            "own_b.py": f"{start}:\n from .own_c import x",
        }
        for start in ("if TYPE_CHECKING", "if __name__ == '__main__'", "with suppress(ImportError)")
    },
    "main module": {"own_p/steps.py": f"import __main__\n{FUNCTION}"},
    "modules of Python": {"own_p/steps.py": f"from concurrent import futures as a\n{FUNCTION}"},
    **{
        f"name of a module with {code}": {
            "own_p/steps.py": f"from own_b import __doc__, g\n{FUNCTION}",
            "own_b.py": code,
        }
        for code in (
            "setattr(sys.modules[__name__], 'g', print)",
            "exec('g = 1')",
            *(f"{scope}()['g'] = 1" for scope in ("vars", "locals", "globals")),
            "match [1]:\n case [g]: pass",
            "[g := (lambda batch: batch) for _ in range(1)]",
        )
    },
    "attribute of every module": {
        "own_p/steps.py": f"from own_b import __doc__, __name__\n{FUNCTION}",
        "own_b.py": RUNS,
    },
    "many modules that import each other": dict.fromkeys(
        (f"own_{number}.py" for number in range(20)),
        "".join(f"import own_{number}\n" for number in range(20)),
    )
    | {"own_p/steps.py": f"import own_0\n{FUNCTION}"},
}


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    importlib.invalidate_caches()


@pytest.mark.parametrize(("files", "path", "part"), WRONG_IMPORTS)
def test_module_that_cannot_be_used_is_refused(
    written: Path, files: dict[str, str], path: str, part: str
) -> None:
    write(written, files)
    with pytest.raises(ModelLoad) as caught:
        check_callable("own", path)
    assert part in caught.value.message


@pytest.mark.parametrize("files", RIGHT_IMPORTS.values(), ids=RIGHT_IMPORTS)
def test_module_that_can_be_used_is_accepted(written: Path, files: dict[str, str]) -> None:
    write(written, files)
    before = set(sys.modules)
    assert check_callable("own", "own_p.steps:f") is not None
    assert check_callable("own", "os.path:join") is None
    assert not [name for name in set(sys.modules) - before if name.startswith("own_")]


@pytest.mark.parametrize(
    ("source", "arguments", "problem"),
    [
        ("def make(size): pass", {"size": 3}, ""),
        ("def make(size): pass", {}, "needs size. Set factoryArgs: {size: ...}"),
        ("def make(size=1): pass", {"sise": 3}, "did you mean 'size'?"),
        ("class make:\n def __init__(self, size): pass", {}, "needs size"),
        ("make = unknown", {"size": 3}, ""),
    ],
)
def test_arguments_of_the_factory_of_a_model_are_checked(
    written: Path, source: str, arguments: dict[str, object], problem: str
) -> None:
    write(written, {"own_a.py": source})
    module = check_callable("own", "own_a:make")
    assert module is not None
    result = factory_problem("own_a:make", arguments, module)
    assert problem in result if problem and result else not (problem or result)


ROWS = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})
MAP, FLAT = {"method": "map"}, {"method": "flatMap"}
PREDICT = {"predictBatch": {"input": "text", "output": "out"}}
WRONG_RESULTS: list[tuple[str, Fields, str]] = [
    ("def f(row):\n yield row", MAP, "line 2. Write return, or set method: flatMap"),
    ("def f(row):\n row['x'] = 1", MAP, "Add return row"),
    ("def f(row): pass", FLAT, "Add return [row]"),
    ("def f(batch): return None", {}, "Write return batch"),
    ("def f(batch): return {'x': 5}", {}, "[5] * len(next(iter(batch.values())))"),
    ("def f(batch): return {'id': batch['id'], 'x': None}", {}, "None in column 'x'"),
    ("def f(batch): return {'id': batch['id'], 'x': {'a': 1}}", {}, "a dict in column 'x'"),
    ("def f(batch):\n x = f'{1}'\n out = {'id': batch['id']}\n out['x'] = 'abc'\n return out", {},
     "(line 4)"),
    ("def f(batch): return batch['id']", {}, "Write return {'NAME': batch['id']}"),
    ("def f(batch): return batch, 1", {}, "a step returns a dict of columns. Write return batch"),
    ("f = lambda batch: 'x'", {}, "a text"),
    ("def f(row): return [row]", MAP, "a list in line 1, and method map returns a row"),
    ("def f(row): return row['text'], 1", MAP, "a tuple"),
    ("def f(row): return {'a': 1}", FLAT, "method flatMap returns a list of rows"),
    ("class C:\n def predict_batch(self, values): return {'a': 1}", PREDICT, "a dict"),
    ("def f(batch):\n if batch['id'] > 1: pass\n return batch", {}, "Set method: map"),
    ("def f(batch):\n for i, _ in enumerate(batch['text']): batch['id'][i] += 1\n return batch", {},
     "batch['id'].copy() before the loop in line 2"),
    ("def f(batch): return {'x': batch[-1]}", {}, "Write batch['COLUMN'][-1]"),
    ("def f(batch):\n for i in range(len(batch)): print(batch[i]['id'])\n return batch", {},
     "Set method: map"),
    ("def f(batch):\n for r in batch: print(r['text'])\n return batch", {}, "Set method: map"),
    ("def f(batch): return {'x': batch.text}", {}, "batch['text'] for a column"),
    ("def f(batch):\n label = 'abc'\n batch['x'] = label\n return batch", {}, "['abc'] * len("),
    ("def helper(b): return b\ndef f(batch): return hepler(batch)", {}, "did you mean 'helper'?"),
]  # fmt: skip
RIGHT_RESULTS: list[tuple[str, Fields]] = [
    ("def f(batch): return {**batch, 'x': [1, 2, 3]}", {}),
    ("def f(batch): return {'x': (1, 2, 3)}", {}),
    ("def f(batch):\n if len(batch['id']): return dict(batch)\n raise ValueError", {}),
    ("def f(batch):\n import pandas as pd\n batch = pd.DataFrame(batch)\n batch['x'] = 'abc'\n"
     " return batch", {}),
    ("from __future__ import annotations\ndef f(batch: Unknown) -> Unknown: return batch", {}),
    ("def f(batch):\n batch['x'] = 5\n batch['x'] = [5] * 3\n return batch", {}),
    ("def f(batch):\n return {'x': sum([batch['id'], batch['id']])}", {}),
    ("def f(batch):\n batch = {'text': 'a'}\n return {'x': [batch['text'].upper()] * 3}", {}),
    ("def f(batch):\n try: return {'x': unknown}\n except NameError: return batch", {}),
    ("def f(batch):\n def inner(): yield 1\n batch['x'] = list(inner()) * 3\n return batch", {}),
    ("def f(batch):\n x = 5\n x = [x] * 3\n return {'x': x}", {}),
    ("def f(row): return {'x': 'abc', 'y': None}", MAP),
    ("def f(row):\n yield row\n yield row", FLAT),
    ("def f(row):\n if row['id'] > 1: return []\n return [row]", FLAT),
    ("def f(batch):\n try: pass\n except ValueError as error: print(error)\n"
     " match batch:\n  case {'id': ids, **rest}: return {'x': ids, **rest}", {}),
    ("class C:\n def predict_batch(self, values): return [1 for _ in values]", PREDICT),
    ("def f(batch):\n batch['x'] = []\n for t in batch['text']: batch['x'].append(t)\n"
     " return batch", {}),
    ("import pandas as pd\ndef f(batch):\n batch['text'] = pd.Series(batch['text'])\n"
     " batch['text'] = batch['text'].str.upper()\n return batch", {}),
    ("def f(batch):\n batch['text'] = [*batch['text']]\n batch['text'].reverse()\n"
     " return batch", {}),
    ("def f(batch):\n if not isinstance(batch, dict): return batch.assign(x=1)\n return batch", {}),
    ("def f(batch): return {c: batch[c] for c in (batch.columns if hasattr(batch, 'columns')\n"
     " else batch)}", {}),
    ("def f(batch):\n try: return {'x': batch.text}\n except AttributeError: return batch", {}),
    ("def g(b): return {'x': [1, 2, 3]}\ndef f(batch): return {'x': None, **g(batch)}", {}),
    ("def f(batch):\n out = {'x': None}\n out.update(x=[1, 2, 3])\n return out", {}),
    ("def f(batch):\n out = {'x': None}\n for k in out: out[k] = [1, 2, 3]\n return out", {}),
    ("def f(batch):\n out = {'x': None}\n out['x'], n = [1, 2, 3], 1\n return out", {}),
    ("import numpy as np\ndef f(batch):\n batch['n'] = 0\n batch['n'] += np.arange(3)\n"
     " return batch", {}),
    ("def f(batch):\n batch['n'] = 5\n del batch['n']\n return batch", {}),
    ("def f(batch):\n batch['n'] = 5\n batch.pop('n')\n return batch", {}),
    ("def f(batch):\n batch['x'] = {'a': [1, 2, 3]}\n return batch['x']", {}),
    ("def f(row):\n out = None\n def s():\n  nonlocal out\n  out = {'x': 1}\n s()\n"
     " return out", MAP),
    ("def f(row):\n out = None\n match row:\n  case {**out}: pass\n return out", MAP),
    ("def f(batch):\n batch['id'] = batch['id'] + 1\n batch['id'] += 1\n return batch", {}),
    ("def f(batch): return {k: v[::-1] for k, v in batch.items()}", {}),
    ("def f(batch): return {'x': (batch['id'] > 1) & (batch['id'] < 3)}", {}),
    ("def f(batch): return {'x': 'a' in batch['text'] and batch['id']}", {}),
    ("def f(batch):\n good = {}\n good['id'] = batch['id'][batch['id'] > 1]\n"
     " good['names'] = [name for name in batch]\n return batch", {}),
    ("import types\ndef f(batch):\n made = [types.SimpleNamespace(format=1) for _ in batch['id']]\n"
     " batch['x'] = made\n return {'id': batch['id'], 'x': [m.format for m in batch['x']]}", {}),
    ("class C:\n def __call__(self, batch): return {'x': [__class__.__name__] * 3}", {}),
    ("def f(batch):\n batch['pos'] = batch['id'][batch['id'] > 1]\n"
     " return {'y': batch['id'] / batch['pos'].mean(), 'z': batch['text'][batch['id'] & 1]}", {}),
    ("def f(batch):\n if batch['id'] @ batch['id'] > 3: return batch", {}),
    ("def f(batch):\n w = [1.0] * len(batch)\n for i in range(len(batch)): w[i] += 1\n"
     " return {**batch, 'x': batch['id'] * sum(w), 'y': batch['id'] * len(batch)}", {}),
    ("def f(batch):\n if not len(batch['id']): return display(batch)\n return batch", {}),
    ("def f(row):\n if row['id'] > 5: return\n return row", MAP),
    ("def f(batch, x=None):\n if x is None: batch['x'] = x = 'x'\n return {'x': x}",
     {"callArgs": {"x": ["a", "b", "c"]}}),
    ("def f(batch):\n for n in batch:\n  n = {'id': n}\n  n['id']\n return batch", {}),
    ("def f(batch):\n for i in range(len(batch['id'])):\n  if i < 5: continue\n"
     "  batch['id'][i] = 0\n return batch", {}),
    ("def f(batch):\n assert len(batch['id']), batch.shape\n return batch", {}),
    ("from builtins import dict as list\ndef f(self, n=1): return list(x=self['id'])", {}),
    ("class C:\n def g(self): display(self)\n def __call__(self, batch): return batch", {}),
    ("import functools\ndef g(x, y, b): return b\nf = functools.partial(g, *(1, 2))", {}),
]  # fmt: skip


READS: dict[str, dict[str, int]] = {
    "def f(batch): return {'x': batch['a']}": {"a": 1},
    "class C:\n def __call__(self, batch):\n  return {'x': batch['a'], **batch}": {"a": 3},
    "def f(batch):\n batch['a'] = batch['b']\n return {'x': batch['a']}": {"b": 2},
    "def f(batch):\n if 'a' in batch: pass\n return {'x': batch['a']}": {},
    "def f(batch):\n if len(batch) > 1: return {'x': batch['a']}\n return batch": {},
    "def f(batch):\n try: return {'x': batch['a']}\n except KeyError: return batch": {},
    "def f(batch):\n batch = dict(a=[1])\n return {'x': batch['a']}": {},
    "f = lambda batch: {'x': batch['a']}": {},
    "def f(batch):\n batch.setdefault('a', 1)\n return {'x': batch['a']}": {},
    "def f(batch):\n batch.update(a=1)\n return {'x': batch['a']}": {},
    "def f(batch):\n add(batch)\n return {'x': batch['a']}": {},
    "def f(batch):\n for c in 'ab': batch[c] = batch[c.upper()]\n return {'x': batch['a']}": {},
    "def f(batch):\n if batch['b'][0]: return {}\n return {'x': batch['a']}": {"b": 2},
    "def f(batch):\n return {'x': batch['b']}\n return {'x': batch['a']}": {"b": 2},
    "def f(batch):\n with suppress(KeyError): return {'x': batch['a']}": {},
    "def f(batch):\n try: return {'x': batch['a']}\n except* KeyError: pass": {},
    "def f(batch): return {**batch, 'x': batch['a'], 'n': [*batch.keys()]}": {"a": 1},
}
"""The columns that code reads in any case."""


def step_with_result(source: str, fields: Fields) -> PythonStep:
    name = "C" if "class C" in source else "f"
    return PythonStep.model_validate({"callable": f"made_code:{name}", **fields})


def run(source: str, step: PythonStep, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    """Return the rows that the code makes of ROWS. Raises the error of the first failed row."""
    module = types.ModuleType("made_code")
    exec(source, vars(module))
    monkeypatch.setitem(sys.modules, "made_code", module)
    result = as_result(python_transform("own", step)(ROWS))
    for error in result.failed.values():
        raise error
    return result.table


@pytest.mark.parametrize(("source", "fields", "part"), WRONG_RESULTS)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_code_with_an_unusable_result_is_refused(
    source: str, fields: Fields, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_with_result(source, fields)
    problem = signature_problem(step, ast.parse(source))
    assert problem is not None
    assert part in problem
    with pytest.raises(Exception, match=r"."):
        run(source, step, monkeypatch)


@pytest.mark.parametrize(("source", "columns"), READS.items())
def test_columns_that_code_reads_are_known(source: str, columns: dict[str, int]) -> None:
    assert columns_of_code(step_with_result(source, {}), ast.parse(source)) == columns


@pytest.mark.parametrize(("source", "fields"), RIGHT_RESULTS)
def test_code_with_a_usable_result_is_accepted(
    source: str, fields: Fields, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_with_result(source, fields)
    assert run(source, step, monkeypatch).num_rows
    assert signature_problem(step, ast.parse(source)) is None


def test_a_column_of_one_row_may_be_used_as_a_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_row.py").write_text("def f(batch): return {'x': batch['id'] or [0]}")
    monkeypatch.syspath_prepend(tmp_path)
    step = PythonStep.model_validate({"callable": "own_row:f"})
    UserCode.check("own", step, batch_size=1)
    assert as_result(python_transform("own", step)(ROWS[:1])).table.num_rows == 1
    with pytest.raises(ModelLoad):
        UserCode.check("own", step)
