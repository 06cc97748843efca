"""Rules of the repository that ruff and import-linter do not check."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from pydantic.alias_generators import to_snake

ROOT = Path(__file__).parents[2]
JOBS = ROOT / "jobs/src/batchinference"
OPERATOR = ROOT / "operator/src/batchinference_operator"
SOURCES = sorted([*JOBS.rglob("*.py"), *OPERATOR.rglob("*.py")])
LONGEST = 60
LONG = 35
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
BUDGETS = {
    "jobs/src/batchinference/pipeline": 48_195,
    "jobs/src": 72_582,
    "operator/src": 8_851,
    "tests": 116_834,
}
"""Maximum lines of Python. CONTRIBUTING.md says how a feature is accepted."""
MESSAGES_IN_TESTS = 230
"""Maximum number of functions and tables of tests that contain four words of a message in a row.
`Messages` of plugins/messages.py compares messages with golden files."""
PATCHED_CONSTANTS = 22
"""Maximum number of patches of constants in tests, of libraries too. Prefer an argument."""
WORDS_OF_A_SENTENCE = 25
"""Maximum number of words in a sentence of a docstring. An item of a list is a sentence."""
MAY_BE_LONG = 5
"""CONTRIBUTING: a function has about 10 lines, rarely more than 35, never more than 60."""
HEAVY = ("ray", "pyarrow", "torch", "transformers", "numpy", "pandas", "PIL")
KUBERNETES = ("kopf", "kubernetes")
NETWORK = (*KUBERNETES, "aiohttp")
BASE = {"cronsim", "jsonschema", "pydantic", "pydantic_core", "yaml", "batchinference"}
"""What the light part of `jobs` may import. The operator installs only these packages of it."""
LIGHT = {
    "batchinference.spec": HEAVY + NETWORK,
    "batchinference.plan": HEAVY + NETWORK,
    "batchinference.rendering": HEAVY + NETWORK,
    "batchinference": HEAVY + NETWORK,
    "batchinference.cli.main": HEAVY + NETWORK,
    "batchinference.cli.submit_and_control": HEAVY + NETWORK,
    "batchinference.cli.show_errors": HEAVY + NETWORK,
    "batchinference_operator.status.job_status": HEAVY + NETWORK,
    "batchinference_operator.reconcile.reconcile": HEAVY + NETWORK,
    "batchinference_operator.main": HEAVY,
    "batchinference.pipeline.job": ("ray.data",),
}
"""Light modules, and the packages that they must not import. One process imports them in order."""
PRIVATE_WORDS = {"found", "place", "places", "most", "least", "taken", "whole", "held"}
"""No name is one of these words: a value has its noun as name, and a function its verb."""
BOUND_WORD = re.compile(rf"\b({'|'.join(PRIVATE_WORDS)})\b *([=,:)(]|in )")
MAY_USE_FOUND = {"jobs/src/batchinference/cli/doctor_finding.py", "tests/unit/cli/test_doctor.py"}
"""They use the field `found` of the output of `doctor`."""


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> Iterator[str]:
    """Yield the top-level package of each import in a file."""
    return (name.split(".")[0] for name in modules_imported(path))


def modules_imported(path: Path) -> Iterator[str]:
    """Yield the full name of each module that a file imports, also in functions and for types. If
    it imports a name from a module, the name follows."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_loaded(path: Path, module: str) -> Iterator[str]:
    """Yield the full name of each module that a file may import by a name in a text: it calls
    `import_module` with `{__name__}.{NAME}` or `{__package__}.{NAME}`. A module `kinds` may import
    all modules of its package, because formats in the specification are such names, too."""
    texts = {to_snake(node.value) for node in ast.walk(tree_of(path))
             if isinstance(node, ast.Constant) and isinstance(node.value, str)}  # fmt: skip
    if path.stem == "kinds":
        texts = {each.stem for each in path.parent.iterdir()} - {"kinds", "__init__"}
    for call in ast.walk(tree_of(path)):
        if isinstance(call, ast.Call) and "import_module" in ast.unparse(call.func):
            name = ast.unparse(call.args[0])
            match = re.fullmatch(r"f'\{__(name|package)__\}\.(\w+\.)?\{.*\}'", name)
            package = module if match and match[1] == "name" else module.rpartition(".")[0]
            yield from (f"{package}.{match[2] or ''}{text}" for text in texts if match)


def functions_over(limit: int) -> list[str]:
    return [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno
        and node.end_lineno - node.lineno + 1 > limit
    ]


def test_sources_are_found() -> None:
    assert JOBS / "spec/problems.py" in SOURCES
    assert OPERATOR / "main.py" in SOURCES


def test_light_modules_import_nothing_heavy() -> None:
    code = f"""
import importlib, sys
for module, unwanted in {LIGHT!r}.items():
    importlib.import_module(module)
    for package in sorted(sys.modules.keys() & set(unwanted)):
        print(module, "imports", package)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == []


def test_base_of_jobs_needs_few_packages() -> None:
    allowed = BASE | sys.stdlib_module_names
    offenders = {
        name_of(path): outside
        for package in ("spec", "plan", "rendering")
        for path in (JOBS / package).rglob("*.py")
        if (outside := set(imports(path)) - allowed)
    }
    assert offenders == {}


def test_reconcile_and_status_of_the_operator_are_pure() -> None:
    talking = {path for path in SOURCES if set(imports(path)) & set(KUBERNETES)}
    pure = (OPERATOR / "reconcile", OPERATOR / "status")
    assert [path for path in talking if path.parent in pure] == []
    outside = {path for path in talking if OPERATOR not in path.parents}
    assert outside == {JOBS / "api/kubernetes.py"}


def modules_by_name() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for root in (JOBS.parent, OPERATOR.parent)
        for path in SOURCES
        if path.is_relative_to(root)
    }


def test_no_module_imports_itself_through_others() -> None:
    """Unlike import-linter, this also compares a package with the modules in it, and sees imports
    of modules that are named by a text."""
    modules, graph = modules_by_name(), TopologicalSorter[str]()
    for module, path in modules.items():
        for name in modules_imported(path):
            graph.add(module, name if name in modules else name.rpartition(".")[0])
        graph.add(module, *(modules.keys() & set(modules_loaded(path, module))))
    graph.prepare()  # raises CycleError, which names a cycle


def test_imports_by_a_name_in_a_text_are_seen() -> None:
    modules, pipeline = modules_by_name(), "batchinference.pipeline"
    for table, name in (("steps", "steps.explode"), ("input.sources.kinds", "input.sources.items")):
        module = f"{pipeline}.{table}"
        assert f"{pipeline}.{name}" in modules_loaded(modules[module], module)
    for module in filter(re.compile(r".*\.kinds").fullmatch, modules):
        assert modules.keys() & set(modules_loaded(modules[module], module)), module


def test_layers_have_no_exceptions() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for contract in settings["tool"]["importlinter"]["contracts"]:
        assert not {"ignore_imports", "allow_indirect_imports"} & contract.keys(), contract["name"]


def test_two_modules_import_private_parts_of_ray() -> None:
    private = re.compile(r"ray\.(\w+\.)*_\w+")
    users = {path for path in SOURCES if any(map(private.match, modules_imported(path)))}
    assert users == {JOBS / f"pipeline/{name}_compat.py" for name in ("ray", "ray_data")}


def test_no_function_is_longer_than_60_lines() -> None:
    assert functions_over(LONGEST) == []


def test_at_most_five_functions_are_longer_than_35_lines() -> None:
    long = functions_over(LONG)
    assert len(long) <= MAY_BE_LONG, long


def test_functions_that_return_arrays_say_their_type() -> None:
    """A type such as int64. The shape is said if an array has more than one dimension."""
    said = re.compile(r"\b(u?int\d+|float\d+|bool|type|numeric)\b")
    silent = [
        f"{name_of(path)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and node.returns
        and re.search(r"ndarray|torch\.Tensor$", ast.unparse(node.returns))
        and not said.search(ast.get_docstring(node) or "")
    ]
    assert silent == []


def test_public_methods_have_a_docstring_or_inherit_one() -> None:
    nodes = [node for path in SOURCES for node in ast.walk(tree_of(path))]
    classes: dict[str, list[ast.ClassDef]] = defaultdict(list)
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            classes[node.name].append(node)

    def is_silent(owner: ast.ClassDef, name: str) -> bool:
        own = [node for node in owner.body if isinstance(node, FUNCTION) and node.name == name]
        names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in owner.bases]
        bases = [base for each in names if each != owner.name for base in classes[each]]
        return not any(map(ast.get_docstring, own)) and all(is_silent(base, name) for base in bases)

    methods = [(node, method) for node in nodes if isinstance(node, ast.ClassDef)
               for method in node.body if isinstance(method, FUNCTION)]  # fmt: skip
    assert [
        f"{owner.name}.{method.name}"
        for owner, method in methods
        if not owner.name.startswith("_") and not method.name.startswith("_")
        and is_silent(owner, method.name)
    ] == []  # fmt: skip


def sentences_of(docstring: str) -> Iterator[str]:
    """Yield the sentences and the items of lists of a docstring, without its examples."""
    for paragraph in re.split(r"\n\s*\n|\n(?=- |\d\. )", docstring):
        if "->" not in paragraph and ">>>" not in paragraph:
            yield from re.split(r"(?<=[.!?:;])\s+", paragraph)


def test_sentences_of_docstrings_are_short() -> None:
    documented = (ast.Module, ast.ClassDef, *FUNCTION)
    docstrings = [
        (f"{name_of(path)}:{getattr(node, 'lineno', 1)}", ast.get_docstring(node) or "")
        for path in SOURCES
        for node in ast.walk(tree_of(path))
        if isinstance(node, documented)
    ]
    assert [
        (line, sentence)
        for line, docstring in docstrings
        for sentence in sentences_of(docstring)
        if len(sentence.split()) > WORDS_OF_A_SENTENCE
    ] == []


def test_few_constants_are_patched_by_tests() -> None:
    patch = re.compile(r'(?:setattr|patch\.object)\([^)]*"[A-Z_]{4,}"')
    tests = [path for path in (ROOT / "tests").rglob("*.py") if "bench" not in path.parts]
    assert sum(len(patch.findall(path.read_text())) for path in tests) <= PATCHED_CONSTANTS


def test_no_module_has_a_todo_mark() -> None:
    marks = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX|HA" + r"CK)\b")
    assert [
        name_of(path) for path in SOURCES if marks.search(path.read_text(encoding="utf-8"))
    ] == []


def private_names(path: Path) -> set[str]:
    """Return the private words that are names in a file, but not those in its texts."""
    text = path.read_text(encoding="utf-8")
    if not BOUND_WORD.search(text):
        return set()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return PRIVATE_WORDS & {token.string for token in tokens if token.type == tokenize.NAME}


def test_no_name_is_a_private_word() -> None:
    more = [path for name in ("examples", "tests", "tools") for path in (ROOT / name).rglob("*.py")]
    assert {name_of(path) for path in (*SOURCES, *more) if private_names(path)} == MAY_USE_FOUND


def lines_of(package: str) -> int:
    """Return the number of lines of the Python files below a directory of the repository."""
    files = (ROOT / package).rglob("*.py")
    return sum(file.read_text(encoding="utf-8").count("\n") for file in files)


@pytest.mark.parametrize(("package", "limit"), BUDGETS.items())
def test_package_keeps_its_budget_of_lines(package: str, limit: int) -> None:
    assert lines_of(package) <= limit


def texts_in(node: ast.AST) -> Iterator[str]:
    """Yield the texts of four words or more in a syntax tree, without docstrings."""
    docstrings = {id(each.value) for each in ast.walk(node) if isinstance(each, ast.Expr)}
    for each in ast.walk(node):
        is_text = isinstance(each, ast.Constant) and isinstance(each.value, str)
        if is_text and each.value.count(" ") > 2 and id(each) not in docstrings:
            yield each.value


@cache
def phrases(text: str) -> frozenset[str]:
    """Return each four words in a row."""
    words = [word.lower().strip(".,:;()`'\"") for word in text.split()]
    rows = zip(words, words[1:], words[2:], words[3:], strict=False)
    return frozenset(" ".join(row) for row in rows if all(word.isalpha() for word in row))


def test_few_tests_contain_messages() -> None:
    product = {
        each for path in SOURCES for text in texts_in(tree_of(path)) for each in phrases(text)
    }
    copies = [
        f"{name_of(path)}:{part.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        for part in ast.parse(path.read_text(encoding="utf-8")).body
        if any(product & phrases(text) for text in texts_in(part))
    ]
    assert len(copies) <= MESSAGES_IN_TESTS, copies
