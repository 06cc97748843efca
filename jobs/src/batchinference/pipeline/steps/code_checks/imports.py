"""Checks modules of the user: they are valid Python, and their imports and callables exist."""

import ast
import symtable
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib.metadata import packages_distributions
from pathlib import Path
from pkgutil import iter_modules

from batchinference.pipeline.errors import ModelLoad, is_user_file
from batchinference.pipeline.steps.code_checks.batch_use import own_nodes
from batchinference.pipeline.steps.import_path import spec_of
from batchinference.spec.problems import did_you_mean

SHOWN_NAMES = 12
"""Maximum number of names that a message lists."""
_NAMED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def check_callable(step: str, path: str) -> ast.Module | None:
    """Return the syntax tree of the module in `module:name`; None if it is no .py file of the user.

    The file is only parsed, not imported. Raises ModelLoad if the module or name does not exist.
    Also raises ModelLoad if the file is not valid Python, or if one of its imports would fail."""
    module = path.partition(":")[0]
    spec, top = spec_of(module), spec_of(module.partition(".")[0])
    if spec is None and top is not None and top.origin and not is_user_file(top.origin):
        return None  # an import of the package may create the module, as os creates os.path
    if spec is None:
        raise ModelLoad(
            f"step '{step}': there is no module '{module}'{_near_module(path) or '.'} Put the "
            "module into the directory of the job file, install it, or add it to the image"
        )
    if spec.origin is None or not spec.origin.endswith(".py") or not is_user_file(spec.origin):
        return None
    file = Path(spec.origin)
    alone = "." not in module and spec.submodule_search_locations is None
    tree = _checked_module(step, file, set(), alone=alone, certain=True)
    _check_name(step, path, file, tree)
    return tree


def _check_imports(
    step: str, file: Path, tree: ast.Module, begun: set[tuple[Path, bool]], *, certain: bool
) -> None:
    """Raise ModelLoad if a module imports a missing package, or an invalid module of the user.
    `begun` has `file` and `certain` of each check that has begun. `certain` is False if another
    module of the user may have changed the Python path before these imports."""
    if any(map(_may_change_imports, ast.walk(tree))):
        return
    for line, package, names in _top_level_imports(tree):
        spec = spec_of(package)
        if package == "__main__" or (spec is None and not certain):
            continue
        if spec is None:
            own = (module.name for module in iter_modules([str(file.parent)]))
            near = did_you_mean(package, [*own, *packages_distributions()])
            near = near or did_you_mean(package, sys.stdlib_module_names, 0.75)
            raise ModelLoad(
                f"step '{step}': {file.name}, line {line} imports '{package}', which is not "
                f"installed{near or '.'} Install it, put it into the directory of the job's file, "
                "or add it to the image"
            )
        other = Path(spec.origin or "")
        if other.suffix != ".py" or not is_user_file(str(other)):
            _check_standard_names(step, f"{file.name}, line {line}", package, names)
            continue
        if spec.submodule_search_locations is None:
            inner = _checked_module(step, other, begun, alone=True, certain=certain)
            for name in names:
                _check_name(step, f"{package}:{name}", other, inner)
        certain = False


def _check_standard_names(step: str, where: str, package: str, names: list[str]) -> None:
    """Raise ModelLoad if a module of the standard library lacks one of `names`. Modules that this
    process has not imported are not checked, because an import may do anything."""
    module = sys.modules.get(package) if package in sys.stdlib_module_names else None
    for name in names if module else ():
        if not hasattr(module, name) and spec_of(f"{package}.{name}") is None:
            near = did_you_mean(name, dir(module)) or ". Correct it"
            raise ModelLoad(
                f"step '{step}': {where} imports '{name}', which '{package}' lacks{near}"
            )


def _may_change_imports(node: ast.AST) -> bool:
    """Return whether a node may change where Python finds modules."""
    match node:
        case ast.Attribute(ast.Name("sys"), "path") | ast.ImportFrom("sys" | "site"):
            return True
        case ast.Attribute(attr="modules" | "meta_path" | "path_hooks" | "addsitedir"):
            return True
    return isinstance(node, ast.alias) and node.name == "sys" and node.asname is not None


def _checked_module(
    step: str, file: Path, begun: set[tuple[Path, bool]], *, alone: bool, certain: bool
) -> ast.Module:
    """Return the syntax tree of a module of the user. First check the module and its imports, if
    `begun` does not have this check. `alone` says that the module is in no package. Raises
    ModelLoad."""
    tree = _parsed(step, file)
    if (file, certain) not in begun:
        begun.add((file, certain))
        if alone:
            _check_no_relative_import(step, file, tree)
        _check_imports(step, file, tree, begun, certain=certain)
    return tree


def _check_name(step: str, path: str, file: Path, tree: ast.Module) -> None:
    """Raise ModelLoad if a module does not define the name in `module:name`."""
    names = _defined_names(file, tree)
    top = path.partition(":")[2].split(".")[0]
    if names is not None and top not in names and not top.startswith("__"):
        public_names = [name for name in names if not name.startswith("_")]
        others = len(public_names) - SHOWN_NAMES
        more = f" and {others} more" if others > 0 else ""
        only = f", only {', '.join(public_names[:SHOWN_NAMES])}{more}" if public_names else ""
        fix = did_you_mean(top, public_names) or ". Use one of them" if only else ". Define it"
        missing = f"has no '{top}'{only}{fix}"
        if outer := _scope_of(top, tree):
            missing = f"defines '{top}' within {outer}. Move it to the top level"
        raise ModelLoad(f"step '{step}': '{path}': {file.name} {missing}")


def _check_no_relative_import(step: str, file: Path, tree: ast.Module) -> None:
    """Raise ModelLoad if a module that is in no package has a relative import."""
    if any(isinstance(node, ast.Name) and node.id == "__package__" for node in ast.walk(tree)):
        return
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            absolute = ast.ImportFrom(node.module, node.names, 0) if node.module else None
            written = ast.unparse(absolute or ast.Import(node.names))
            near = (node.module or node.names[0].name).split(".")[0]
            path = file.parent / near
            files = (path.with_suffix(".py"), path / "__init__.py")
            exists = node.level == 1 and any(each.is_file() for each in files)
            fix = f"Write '{written}'" if exists else "Put the module next to it, and import that"
            raise ModelLoad(
                f"step '{step}': {file.name}, line {node.lineno}: '{ast.unparse(node)}' needs a "
                f"package, and {file.name} is a single module. {fix}"
            )


def _near_module(path: str) -> str:
    """Return a question about the module that was probably meant; an empty text if none is similar.
    The mistake may be a file name, as in `own.py:function`, or a misspelled name."""
    module, _, name = path.partition(":")
    stem = module.removesuffix(".py")
    if stem != module:
        return f"; did you mean '{stem}:{name}'?"
    return did_you_mean(module, (one.name for one in iter_modules(sys.path[:1])))


def _parsed(step: str, file: Path) -> ast.Module:
    try:
        return _parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        problem = error.msg.rstrip("?.") if isinstance(error, SyntaxError) else error
        raise ModelLoad(
            f"step '{step}': {file.name}{line} is not valid Python: {problem}. Correct it"
        ) from None


@lru_cache(maxsize=256)
def _parse(source: bytes, name: str) -> ast.Module:
    """Return the syntax tree of a module. Trees are cached, because steps often share a module."""
    _symbols(source, name)  # finds more errors than the parser
    return ast.parse(source, name)


def _top_level_imports(tree: ast.Module) -> Iterator[tuple[int, str, list[str]]]:
    """Yield the line, package and imported names of each absolute import at the top level."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.partition(".")[0], []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [] if "." in node.module else [alias.name for alias in node.names]
            yield node.lineno, node.module.partition(".")[0], [n for n in names if n != "*"]


def _scope_of(name: str, tree: ast.Module) -> str:
    """Return the function or class that defines a name, and the line; an empty text if none."""
    for outer in (node for node in ast.walk(tree) if isinstance(node, _NAMED)):
        for inner in outer.body:
            if isinstance(inner, _NAMED) and inner.name == name:
                return f"'{outer.name}' (line {inner.lineno})"
    return ""


def _defined_names(file: Path, tree: ast.Module) -> list[str] | None:
    """Return the names that a module defines; None if it may define other names at run time."""
    if any(map(_may_set_names, ast.walk(tree))):
        return None
    symbols = _symbols(file.read_bytes(), str(file)).get_symbols()
    names = [each.get_name() for each in symbols if each.is_assigned() or each.is_imported()]
    names += [node.target.id for node in own_nodes(tree) if isinstance(node, ast.NamedExpr)]
    return None if "__getattr__" in names else names


def _symbols(source: bytes, name: str) -> symtable.SymbolTable:
    return symtable.symtable(source, name, "exec")  # type: ignore[arg-type]  # may name its encoding


def _may_set_names(node: ast.AST) -> bool:
    """Return whether a node may define names of a module at run time."""
    match node:
        case ast.Name("globals" | "locals" | "vars" | "exec" | "setattr") | ast.alias("*"):
            return True
    return isinstance(node, ast.Global) or _may_change_imports(node)
