"""Draws mutants: mutmut's operators applied to single nodes inside functions, ranked by a hash.

The rank of a mutant depends on the seed, the function and the change. Checkouts with the same
product code therefore get the same mutants.
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

from .code import function_code
from .scope import SCOPES, files, module_of
from .store import Mutant

AT_DEFINITION = (cst.Annotation, cst.Decorator, cst.Parameters)
"""Nodes that run when a function is defined, not when it is called."""


@dataclass(frozen=True)
class _Candidate:
    node: cst.CSTNode
    replacement: cst.CSTNode
    line: int
    function: str
    nth: int
    rank: str


class _Candidates(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, salt: str) -> None:
        super().__init__()
        self.candidates: list[_Candidate] = []
        self._salt = salt
        self._scopes: list[cst.CSTNode] = []
        self._functions: list[str] = []
        self._changes: Counter[str] = Counter()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scopes.append(node)
            if isinstance(node, cst.FunctionDef) and node is self._outermost():
                self._functions.append(self._qualified_name())
        elif self._outermost() and not isinstance(node, AT_DEFINITION):
            self._add_all(node)
        return not isinstance(node, AT_DEFINITION)

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._scopes and original_node is self._scopes[-1]:
            self._scopes.pop()

    def _outermost(self) -> cst.CSTNode | None:
        return next((node for node in self._scopes if isinstance(node, cst.FunctionDef)), None)

    def _qualified_name(self) -> str:
        return ".".join(node.name.value for node in self._scopes)

    def _add_all(self, node: cst.CSTNode) -> None:
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                for replacement in operator(node):
                    self._add(node, replacement)

    def _add(self, node: cst.CSTNode, replacement: cst.CSTNode) -> None:
        function, code = self._functions[-1], cst.Module([]).code_for_node
        change = f"{self._salt} {function} {code(node)} -> {code(replacement)}"
        self._changes[change] += 1
        rank = hashlib.sha256(f"{change} {self._changes[change]}".encode()).hexdigest()
        line = self.get_metadata(PositionProvider, node).start.line
        nth = self._functions[:-1].count(function)
        self.candidates.append(_Candidate(node, replacement, line, function, nth, rank))


def draw(tree: Path, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants in total, the same number from each scope, at most one per line."""
    mutants: list[Mutant] = []
    for scope in SCOPES:
        ranked = [pair for file in files(tree, scope) for pair in _one_per_line(file, tree, seed)]
        ranked.sort(key=lambda pair: pair[1].rank)
        usable = (mutant for file, change in ranked if (mutant := _mutant(scope, file, change)))
        mutants += itertools.islice(usable, count // len(SCOPES))
    return mutants


@dataclass(frozen=True)
class _File:
    path: str
    module: str
    parsed: cst.Module


def _one_per_line(path: Path, tree: Path, seed: int) -> list[tuple[_File, _Candidate]]:
    wrapper = MetadataWrapper(cst.parse_module(path.read_text()))
    file = _File(str(path.relative_to(tree)), module_of(path), wrapper.module)
    candidates = _Candidates(f"{seed} {file.module}")
    wrapper.visit(candidates)
    ranked = sorted(candidates.candidates, key=lambda candidate: candidate.rank, reverse=True)
    return [(file, best) for best in {candidate.line: candidate for candidate in ranked}.values()]


def _mutant(scope: str, file: _File, change: _Candidate) -> Mutant | None:
    """Return the mutant, or None if the changed function cannot replace the original."""
    source = file.parsed.deep_replace(change.node, change.replacement).code
    try:
        old = function_code(file.parsed.code, file.path, change.function, change.nth)
        new = function_code(source, file.path, change.function, change.nth)
    except SyntaxError:
        return None
    if old == new or old.co_freevars != new.co_freevars:
        return None
    return Mutant(
        name=change.rank[:8],
        scope=scope,
        file=file.path,
        module=file.module,
        line=change.line,
        function=change.function,
        nth=change.nth,
        source=source,
        diff=_diff(file.parsed.code, source),
    )


def _diff(old: str, new: str) -> str:
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
