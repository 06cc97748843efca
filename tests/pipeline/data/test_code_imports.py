"""Modules of the user are checked with those that they import, and none of them is run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from batchinference.pipeline.errors import ModelLoad
from batchinference.pipeline.steps.code_checks.function_signatures import factory_problem
from batchinference.pipeline.steps.code_checks.imports import check_callable

RUNS = "raise AssertionError('the module was run')\n"
FUNCTION = RUNS + "def f(batch): return batch\n"
REFUSED = [
    ({"own_a.py": f"'Steps.'\nfrom .own_b import g\n{FUNCTION}", "own_b.py": RUNS}, "own_a:f",
     "line 2: 'from .own_b import g' needs a package, and own_a.py is a single module. Write "
     "'from own_b import g'"),
    ({"own_a.py": f"import own_b\n{FUNCTION}", "own_b.py": "from .own_c import x"}, "own_a:f",
     "own_b.py, line 1: 'from .own_c import x' needs a package"),
    ({"own_a.py": f"from own_b import hepler\n{FUNCTION}", "own_b.py": "def helper(): pass"},
     "own_a:f", "own_b.py has no 'hepler', only helper; did you mean 'helper'?"),
    ({"own_a.py": f"import nunpy\n{FUNCTION}"}, "own_a:f",
     "imports 'nunpy', which is not installed; did you mean 'numpy'?"),
    ({"own_a.py": "def outer():\n def f(batch): return batch"}, "own_a:f",
     "own_a.py defines 'f' within 'outer' (line 2). Move it to the top level"),
    ({"own_a.py": ""}, "own_a:f", "own_a.py has no 'f'. Define it"),
    ({"own_p/__init__.py": RUNS}, "own_p.steps:f", "there is no module 'own_p.steps'"),
]  # fmt: skip
ACCEPTED = {
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


@pytest.mark.parametrize(("files", "path", "part"), REFUSED)
def test_module_that_cannot_be_used_is_refused(
    written: Path, files: dict[str, str], path: str, part: str
) -> None:
    write(written, files)
    with pytest.raises(ModelLoad) as caught:
        check_callable("own", path)
    assert part in caught.value.message


@pytest.mark.parametrize("files", ACCEPTED.values(), ids=ACCEPTED)
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
    found = factory_problem("own_a:make", arguments, module)
    assert problem in found if problem and found else not (problem or found)
