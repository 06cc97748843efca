"""Mistakes in `python` steps and in their code."""

from __future__ import annotations

from support.mistakes import FILES, Mistake
from support.mistakes import JOB as _JOB

STEP = _JOB[_JOB.index("  - name: embed") : _JOB.index("  write:")]
CLEAN = "def clean(batch):\n    return batch\n"
CALLING = "callable: 'steps:clean'"


def _step(text: str) -> str:
    return f"  - name: own\n    python: {text}\n"


def _field(wrong: str, says: str, right: str = CALLING) -> Mistake:
    """Return a mistake in the fields of the step."""
    wrong = wrong if wrong.startswith(("'", "[")) else f"{{{wrong}}}"
    return Mistake(_step(wrong), _step(f"{{{right}}}"), STEP, says=says)


def _code(wrong: str, right: str, says: str, fields: str = CALLING, others: str = "") -> Mistake:
    """Return a mistake in steps.py. `others` is the code of h.py."""
    files = {"h.py": others} if others else {}
    step = _step(f"{{{fields}}}")
    return Mistake(
        step, step, STEP, {**files, "steps.py": wrong}, {**files, "steps.py": right}, says
    )


def _returned(wrong: str, right: str, says: str = "et method: map") -> Mistake:
    """Return a mistake in the only column that a function returns."""
    code = "import json\ndef clean(batch):\n    return "
    return _code(f"{code}{wrong}\n", f"{code}{{'x': {right}}}\n", says)


MISTAKES = {
    "a text as the step": _field("'steps:clean'", "{callable: 'steps:clean'}"),
    "function": _field("function: 'steps:clean'", "'callable'"),
    "script": _field("script: steps.py", "Write callable: steps:NAME"),
    "batch_format": _field(f"{CALLING}, batch_format: pandas", "batch = pd.DataFrame(batch)"),
    "fn_kwargs": _field(f"{CALLING}, fn_kwargs: {{}}", "'callArgs'", f"{CALLING}, callArgs: {{}}"),
    "spaces in the callable": _field("callable: 'steps : clean'", "Write steps:clean"),
    "kwargs": _field(f"{CALLING}, kwargs: {{}}", "'callArgs'", f"{CALLING}, callArgs: {{}}"),
    "a list as callArgs": _field(
        f"{CALLING}, callArgs: [en]", "callArgs: {NAME: VALUE}", f"{CALLING}, callArgs: {{}}"
    ),
    "map_batches": _field(f"{CALLING}, method: map_batches", "'mapBatches'",
                          f"{CALLING}, method: mapBatches"),
    "batchSize in the step's code": _field(f"{CALLING}, batchSize: 3", "spec.steps[1]. Move it"),
    "a file as the module": _field("callable: 'steps.py:clean'", "'steps:clean'"),
    "a misspelled module": _field("callable: 'stepz:clean'", "'steps'"),
    "a misspelled function": _field("callable: 'steps:claen'", "'clean'"),
    "a dash in the module": Mistake(
        _step("{callable: 'my-steps:clean'}"), _step("{callable: 'my_steps:clean'}"), STEP,
        {"my-steps.py": CLEAN}, {"my_steps.py": CLEAN}, "write my_steps:clean",
    ),
    "a callable without a module": _field("callable: clean", "steps:clean"),
    "a path as the module": _field("callable: './steps.py:clean'", "steps:clean"),
    "a call": _field("callable: 'steps:clean()'", "steps:clean"),
    "a lambda": _field("callable: 'lambda b: b'", "steps:NAME"),
    "a text as the result": _code("def clean(batch):\n    return 'a'\n", CLEAN, "{'NAME': values}"),
    "a misspelled column in the code": _code(
        "def clean(batch):\n    return {'x': batch['txt']}\n",
        "def clean(batch):\n    return {'x': batch['text']}\n", "'text'?",
    ),
    "a name that is not defined": _code("def clean(batch):\n    return bacth\n", CLEAN, "'batch'?"),
    "a misspelled import": _code(
        f"from h import gg\n{CLEAN}", f"from h import g\n{CLEAN}", "'g'?", others="g = 1\n"
    ),
    "a misspelled module that is imported": _code(
        f"import jsno\n{CLEAN}", CLEAN, "did you mean 'json'?"
    ),
    "a part of a batch": _code(
        "def clean(batch):\n    return {'x': batch[-1:]}\n", CLEAN, "Write batch['COLUMN'][-1:]"
    ),
    "a function in a function": _code(
        "def outer():\n    def clean(batch): return batch\n", CLEAN, "to the top level"
    ),
    "no colon after def": _code("def clean(batch) return batch\n", CLEAN, "line 1"),
    "no indentation": _code("def clean(batch):\nreturn batch\n", CLEAN, "line 2"),
    "a package that is not installed": _code(
        f"import no_such_package\n{CLEAN}", CLEAN, "line 1 imports 'no_such_package'"
    ),
    "a relative import": _code(
        f"from .h import g\n{CLEAN}", f"from h import g\n{CLEAN}", "Write 'from h import g'",
        others="def g(): ...\n",
    ),
    "a relative import of a module": _code(
        f"from . import h\n{CLEAN}", f"import h\n{CLEAN}", "Write 'import h'", others="g = 1\n"
    ),
    "no parameter": _code("def clean():\n    return {}\n", CLEAN, "Write 'def clean(batch)'"),
    "two parameters": _code(
        "def clean(batch, lang):\n    return batch\n",
        "def clean(batch, lang='en'):\n    return batch\n", "callArgs: {lang: ...}",
    ),
    "a misspelled argument": Mistake(
        _step(f"{{{CALLING}, callArgs: {{lnag: en}}}}"),
        _step(f"{{{CALLING}, callArgs: {{lang: en}}}}"), STEP,
        {"steps.py": "def clean(batch, lang):\n    return batch\n"}, says="'lang'",
    ),
    "constructorArgs of a function": Mistake(
        _step(f"{{{CALLING}, constructorArgs: {{lang: en}}}}"),
        _step(f"{{{CALLING}, callArgs: {{lang: en}}}}"), STEP,
        {"steps.py": "def clean(batch, lang):\n    return batch\n"}, says="Use callArgs",
    ),
    "a class without __call__": _code(
        "class Clean:\n    def run(self, batch): return batch\n",
        "class Clean:\n    def __call__(self, batch): return batch\n",
        "'def __call__(self, batch)'",
        "callable: 'steps:Clean'",
    ),
    "a __call__ without self": _code(
        "class Clean:\n    def __call__(batch): return batch\n",
        "class Clean:\n    def __call__(self, batch): return batch\n",
        "'def __call__(self, batch)'",
        "callable: 'steps:Clean'",
    ),
    "no arguments of the constructor": Mistake(
        _step("{callable: 'steps:Clean'}"),
        _step("{callable: 'steps:Clean', constructorArgs: {path: a}}"), STEP,
        {"steps.py": "class Clean:\n    def __init__(self, path): ...\n"
                     "    def __call__(self, batch): return batch\n"},
        says="constructorArgs: {path: ...}",
    ),
    "a misspelled object of the constructor": Mistake(
        _step("{callable: 'steps:Clean', constructorRefs: {make: 'steps:mak'}}"),
        _step("{callable: 'steps:Clean', constructorRefs: {make: 'steps:make'}}"), STEP,
        {"steps.py": "def make(): ...\nclass Clean:\n    def __init__(self, make): ...\n"
                     "    def __call__(self, batch): return batch\n"},
        says="did you mean 'make'?",
    ),
    "a misspelled name of an object": Mistake(
        _step("{callable: 'steps:Clean', constructorRefs: {mak: 'steps:make'}}"),
        _step("{callable: 'steps:Clean', constructorRefs: {make: 'steps:make'}}"), STEP,
        {"steps.py": "def make(): ...\nclass Clean:\n    def __init__(self, make): ...\n"
                     "    def __call__(self, batch): return batch\n"},
        says="constructorRefs.mak",
    ),
    "a text as a column": _code(
        "def clean(batch):\n    return {'id': batch['id'], 'x': 'abc'}\n",
        "def clean(batch):\n    return {'id': batch['id'], 'x': ['abc'] * len(batch['id'])}\n",
        "Write ['abc'] * len(batch['id'])",
    ),
    "no return": _code(
        "def clean(batch):\n    batch['x'] = batch['n']\n",
        "def clean(batch):\n    batch['x'] = batch['n']\n    return batch\n", "Add return batch",
    ),
    "async": _code("async def clean(batch):\n    return batch\n", CLEAN, "Remove 'async'"),
    "yield": _code("def clean(batch):\n    yield batch\n", CLEAN, "Write return"),
    "a list as the batch": _code(
        "def clean(batch):\n    return [text for text in batch['text']]\n",
        "def clean(batch):\n    return {'x': [text for text in batch['text']]}\n",
        "Write return {'NAME': values}",
    ),
    "a batch as a row": _code(
        "def clean(row):\n    return {'x': row['text'].upper()}\n",
        "def clean(row):\n    return {'x': [text.upper() for text in row['text']]}\n",
        "Set method: map",
    ),
    "the number of rows": _returned("{'x': len(batch['text'])}", "[len(t) for t in batch['text']]"),
    "a truth value": _returned("{'x': bool(batch['n'])}", "[bool(n) for n in batch['n']]"),
    "a generator": _returned(
        "{'x': (text.upper() for text in batch['text'])}",
        "[text.upper() for text in batch['text']]",
        "Write [text.upper() for text in batch['text']]",
    ),
    "a choice": _returned(
        "{'x': 'a' if batch['n'] > 1 else 'b'}", "['a' if n > 1 else 'b' for n in batch['n']]"
    ),
    "a text of two columns": _returned(
        "{'x': f\"{batch['text']} {batch['n']}\"}",
        "[f'{text} {n}' for text, n in zip(batch['text'], batch['n'])]",
    ),
    "a JSON text": _returned(
        "{'x': json.loads(batch['text'])}", "[json.loads(text) for text in batch['text']]"
    ),
    "two conditions on arrays": _returned(
        "{'x': batch['n'] > 1 and batch['n'] < 3}", "[n > 1 and n < 3 for n in batch['n']]"
    ),
    "a column of pandas": _code(
        "def clean(df):\n    df['x'] = df['text'].str.len()\n    return df\n",
        "import pandas as pd\ndef clean(df):\n    df = pd.DataFrame(df)\n"
        "    df['x'] = df['text'].str.len()\n    return df\n",
        "Write df = pd.DataFrame(df) before it",
    ),
    "rows of pandas": _code(
        "def clean(df):\n    return df[df['n'] > 1]\n", CLEAN, "Use a filter step"
    ),
    "a loop that changes values": _code(
        "def clean(batch):\n    for i in range(len(batch['id'])):\n"
        "        batch['n'][i] = 0\n    return batch\n",
        "def clean(batch):\n    batch['n'] = batch['n'].copy()\n"
        "    for i in range(len(batch['id'])):\n        batch['n'][i] = 0\n    return batch\n",
        "Write batch['n'] = batch['n'].copy() before the loop in line 2",
    ),
    "two columns as the result": _code(
        "def clean(batch):\n    return batch['text'], batch['n']\n",
        "def clean(batch):\n    return {'text': batch['text'], 'n': batch['n']}\n",
        "Write return {'text': batch['text'], 'n': batch['n']}",
    ),
    "a comma in place of a colon": _code(
        "def clean(batch):\n    return {'x', batch['n']}\n",
        "def clean(batch):\n    return {'x': batch['n']}\n", "Write return {'x': batch['n']}",
    ),
    "a name without quotes": _code(
        "def clean(batch):\n    return {x: batch['n']}\n",
        "def clean(batch):\n    return {'x': batch['n']}\n", "Write 'x' in quotes",
    ),
    "not of an array": _returned("{'x': not batch['n']}", "[not n for n in batch['n']]"),
    "an attribute of a row": Mistake(
        _step(f"{{{CALLING}, method: map}}"), _step(f"{{{CALLING}, method: map}}"), STEP,
        {"steps.py": "def clean(row):\n    return {'x': row.n}\n"},
        {"steps.py": "def clean(row):\n    return {'x': row['n']}\n"}, "Write row['n']",
    ),
    "the number of columns": _code(
        "def clean(batch):\n    return {**batch, 'x': ['a'] * len(batch)}\n",
        "def clean(batch):\n    return {**batch, 'x': ['a'] * len(batch['id'])}\n",
        "Write len(next(iter(batch.values())))",
    ),
    "a loop over a batch": _code(
        "def clean(batch):\n    return {'x': [row['text'] for row in batch]}\n",
        "def clean(batch):\n    return {'x': list(batch['text'])}\n", "Set method: map",
    ),
    "a row as a text": Mistake(
        _step(f"{{{CALLING}, method: map}}"), _step(f"{{{CALLING}, method: map}}"), STEP,
        {"steps.py": "def clean(text):\n    return {'x': text.upper()}\n"},
        {"steps.py": "def clean(text):\n    return {'x': text['text'].upper()}\n"},
        "Write text['text'].upper()",
    ),
    "iterrows": _code(
        "def clean(batch):\n    for _, row in batch.iterrows(): print(row)\n    return batch\n",
        "import pandas as pd\ndef clean(batch):\n    batch = pd.DataFrame(batch)\n"
        "    for _, row in batch.iterrows(): print(row)\n    return batch\n",
        "Write batch = pd.DataFrame(batch) before it",
    ),
    "a change in place": _code(
        "def clean(batch):\n    batch['n'] += 1\n    return batch\n",
        "def clean(batch):\n    batch['n'] = batch['n'] + 1\n    return batch\n",
        "Write batch['n'] = batch['n'] + 1",
    ),
    "a value that is set": _code(
        "def clean(batch):\n    batch['n'][0] = 0\n    return batch\n",
        "def clean(batch):\n    batch['n'] = batch['n'].copy()\n    batch['n'][0] = 0\n"
        "    return batch\n", "Write batch['n'] = batch['n'].copy() before it",
    ),
    "fewer rows": _code(
        "def clean(batch):\n    keep = batch['n'] > 1\n"
        "    return {k: v[keep] for k, v in batch.items()}\n",
        CLEAN, "Use a filter step, or method: flatMap",
    ),
    "the result of update": _code(
        "def clean(batch):\n    return batch.update({'x': batch['n']})\n",
        "def clean(batch):\n    return {**batch, 'x': batch['n']}\n",
        "Write return {**batch, 'x': batch['n']}",
    ),
    "the first item of a batch": _code(
        "def clean(batch):\n    return {'x': batch[0]}\n",
        "def clean(batch):\n    return {'x': batch['text']}\n", "Write batch['COLUMN'][0]",
    ),
    "a column that is not returned": Mistake(
        f"{_step('{' + CALLING + '}')}  - name: later\n    filter: len(text) > 3\n",
        f"{_step('{' + CALLING + '}')}  - name: later\n    filter: len(text) > 3\n", STEP,
        {"steps.py": "def clean(batch):\n    return {'x': batch['text']}\n"},
        {"steps.py": "def clean(batch):\n    return {**batch, 'x': batch['text']}\n"},
        "Write return {**batch, 'x': batch['text']} in line 2",
    ),
    "a name without an import": _code(
        "def clean(batch):\n    return {'x': np.abs(batch['n'])}\n",
        "import numpy as np\ndef clean(batch):\n    return {'x': np.abs(batch['n'])}\n",
        "Add 'import numpy as np'",
    ),
    "a dot before the function": _field("callable: 'steps.clean'", "Write steps:clean"),
    "self in a function": _code(
        "def clean(self, batch):\n    return batch\n", CLEAN, "Write 'def clean(batch)'"
    ),
    "json.py beside the job": Mistake(
        _step(f"{{{CALLING}}}"), _step(f"{{{CALLING}}}"), STEP, {"json.py": ""}, {},
        "Rename json.py",
    ),
    "a package beside the job": Mistake(
        _step(f"{{{CALLING}}}"), _step(f"{{{CALLING}}}"), STEP, {"pandas/__init__.py": ""}, {},
        "Rename pandas",
    ),
}  # fmt: skip
assert FILES["steps.py"] == CLEAN
