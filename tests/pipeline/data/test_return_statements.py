"""Code whose result a step cannot use is refused by reading its source, and fails if it runs."""

from __future__ import annotations

import ast
import sys
import types
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.steps import as_result
from batchinference.pipeline.steps.code_checks.function_signatures import (
    columns_of_code,
    signature_problem,
)
from batchinference.pipeline.steps.user_code import UserCode, python_transform
from batchinference.spec.python_step import PythonStep

ROWS = pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]})
MAP, FLAT = {"method": "map"}, {"method": "flatMap"}
PREDICT = {"predictBatch": {"input": "text", "output": "out"}}
Fields = dict[str, Any]
REFUSED: list[tuple[str, Fields, str]] = [
    ("async def f(batch): return batch", {}, "Remove 'async'"),
    ("def f(batch): yield batch", {}, "line 1. Write return"),
    ("def f(row):\n yield row", MAP, "line 2. Write return, or set method: flatMap"),
    ("def f(batch): batch['id'][0]", {}, "returns nothing. Add return batch"),
    ("def f(row):\n row['x'] = 1", MAP, "Add return row"),
    ("def f(row): pass", FLAT, "Add return [row]"),
    ("def f(batch): return None", {}, "Write return batch"),
    ("def f(batch):\n return {'id': batch['id'], 'x': 'abc'}", {},
     "a text in column 'x' (line 2), and a column has one value for each row. "
     "Write ['abc'] * len(batch['id'])"),
    ("def f(batch): return {'x': 5}", {}, "[5] * len(next(iter(batch.values())))"),
    ("def f(batch): return {'id': batch['id'], 'x': None}", {}, "None in column 'x'"),
    ("def f(batch): return {'id': batch['id'], 'x': {'a': 1}}", {}, "a dict in column 'x'"),
    ("def f(batch): return {'x': len(batch['id'])}", {}, "a number in column 'x'"),
    ("def f(batch):\n x = f'{1}'\n out = {'id': batch['id']}\n out['x'] = 'abc'\n return out", {},
     "(line 4)"),
    ("def f(batch): return batch['id']", {}, "Write return {'NAME': batch['id']}"),
    ("def f(batch): return [x for x in batch['id']]", {}, "Write return {'NAME': values}"),
    ("def f(batch): return batch['id'], batch['text']", {}, "a tuple"),
    ("def f(batch): return batch, 1", {}, "a step returns a dict of columns. Write return batch"),
    ("f = lambda batch: 'x'", {}, "a text"),
    ("def f(row): return [row]", MAP, "a list in line 1, and method map returns a row"),
    ("def f(row): return row['text'], 1", MAP, "a tuple"),
    ("def f(row): return {'a': 1}", FLAT, "method flatMap returns a list of rows"),
    ("class C:\n def predict_batch(self, values): return {'a': 1}", PREDICT, "a dict"),
    ("def f(batch): return {'x': np.ones(3)}", {}, "Add 'import numpy as np'"),
    ("def f(batch): return {'x': batch['text'].upper()}", {},
     "Write [text.upper() for text in batch['text']], or set method: map"),
    ("def f(batch): return {'x': (t for t in batch['text'])}", {}, "[t for t in batch['text']]"),
    ("def f(batch): return {'x': 'a' if batch['id'] > 1 else 'b'}", {},
     "['a' if id > 1 else 'b' for id in batch['id']]"),
    ("def f(batch):\n if batch['id'] > 1: pass\n return batch", {}, "Set method: map"),
    ("def f(batch): return {'x': ['a'] * len(batch)}", {}, "that is the number of columns"),
    ("def f(batch):\n batch['id'] += 1\n return batch", {}, "Write batch['id'] = batch['id'] + 1"),
    ("def f(batch):\n batch['id'][0] = 5\n return batch", {}, "batch['id'].copy() before it"),
    ("def f(batch): return {k: v[batch['id'] > 1] for k, v in batch.items()}", {},
     "Use a filter step"),
    ("def f(batch):\n for r in batch: print(r['text'])\n return batch", {}, "Set method: map"),
    ("def f(batch): return batch.update({'x': batch['id']})", {},
     "Write return {**batch, 'x': batch['id']}"),
    ("def f(batch): return {'x': batch[0]}", {}, "Write batch['COLUMN'][0]"),
    ("import json\ndef f(batch): return {'x': json.loads(batch['text'])}", {},
     "Write [json.loads(text) for text in batch['text']]"),
    ("def f(batch): return {'x': batch.iterrows()}", {}, "batch = pd.DataFrame(batch)"),
    ("def f(text): return {'x': text.upper()}", MAP, "Write text['text'].upper()"),
    ("def f(batch): return {'x': batch['text'].str.upper()}", {}, "batch = pd.DataFrame(batch)"),
    ("def f(batch): return {'x': batch.text}", {}, "batch['text'] for a column"),
    ("def f(row): return {'x': row.text}", MAP, "row['text'] for a column"),
    ("def f(batch):\n label = 'abc'\n batch['x'] = label\n return batch", {}, "['abc'] * len("),
    ("def f(self, batch): return batch", {}, "has no 'self'"),
    ("def helper(b): return b\ndef f(batch): return hepler(batch)", {}, "did you mean 'helper'?"),
]  # fmt: skip
ACCEPTED: list[tuple[str, Fields]] = [
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


def step_of(source: str, fields: Fields) -> PythonStep:
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


@pytest.mark.parametrize(("source", "fields", "part"), REFUSED)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_code_with_an_unusable_result_is_refused(
    source: str, fields: Fields, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(source, fields)
    problem = signature_problem(step, ast.parse(source))
    assert problem is not None
    assert part in problem
    with pytest.raises(Exception, match=r"."):
        run(source, step, monkeypatch)


@pytest.mark.parametrize(("source", "columns"), READS.items())
def test_columns_that_code_reads_are_known(source: str, columns: dict[str, int]) -> None:
    assert columns_of_code(step_of(source, {}), ast.parse(source)) == columns


@pytest.mark.parametrize(("source", "fields"), ACCEPTED)
def test_code_with_a_usable_result_is_accepted(
    source: str, fields: Fields, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = step_of(source, fields)
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
