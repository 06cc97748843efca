"""Makes functions and classes of a notebook or script importable, so that steps can use them.

Each function or class becomes a module that loads the pickled object. The module contains a hash of
the code and values that the object uses. So changes of functions are detected as in modules."""

import dis
import hashlib
import importlib.util
import inspect
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import reduce
from itertools import chain, count
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from ray.cloudpickle import CloudPickler, dumps

from batchinference.pipeline.steps.code_hashes import hashes_of_module
from batchinference.spec.problems import Problem, SpecError
from batchinference.spec.python_step import CLASS

_FIELDS, _REFERENCES = ("callable", "factory"), "constructorRefs"
"""The fields of a step whose value may be code, and the field that maps names to code."""
_MODULE = """\
# Code of a Python session. Hash of what it computes with: {hash}
from pathlib import Path

from ray import cloudpickle

globals()["{name}"] = cloudpickle.loads(Path(__file__).with_suffix(".pickle").read_bytes())
"""
_NO_CONTENT = ("__dict__", "__weakref__", "__module__", "__doc__", "__firstlineno__", "_abc_impl")
"""Members of classes that do not affect results."""


class CodeByValue:
    """A directory with modules for functions and classes that other processes cannot import."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="code-")
        self.directory = Path(self._temporary.name)
        self._values: dict[str, object] = {}

    @property
    def names(self) -> list[str]:
        """The names of the functions and classes that have a module in the directory."""
        return list(self._values)

    def with_paths(self, value: Any, field: str) -> Any:
        """Return fields of a job with `module:name` in place of functions and classes. Raises
        SpecError if code cannot be pickled, or cannot be called with its arguments."""
        if isinstance(value, list):
            return [self.with_paths(each, f"{field}[{at}]") for at, each in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        return {key: self._field(value, key, f"{field}.{key}") for key in value}

    def _field(self, owner: Mapping[str, Any], key: str, field: str) -> Any:
        value = owner[key]
        if key == _REFERENCES and isinstance(value, Mapping):
            return {name: self._path(each, f"{field}.{name}") for name, each in value.items()}
        if key not in _FIELDS:  # fields such as `callArgs` have plain values, no code
            return value if key.endswith("Args") else self.with_paths(value, field)
        if key == "callable" and callable(value):
            _check_call(value, owner, field)
        return self._path(value, field)

    def _path(self, value: Any, field: str) -> Any:
        """Return `module:name` for a function or class. Write the module if necessary. Return any
        other value unchanged."""
        if not callable(value):
            return value
        if path := _path_of(value):
            return path
        name = self._name_of(value)
        if name not in self._values:
            try:
                content, pickled = _code_hash(value), dumps(value)
            except Exception as error:  # noqa: BLE001 - pickling calls code of the objects
                raise _not_sent(value, field, error) from None
            module = self.directory / f"notebook_{name}.py"
            module.with_suffix(".pickle").write_bytes(pickled)
            module.write_text(_MODULE.format(hash=content, name=name), encoding="utf-8")
            self._values[name] = value
        return f"notebook_{name}:{name}"

    def _name_of(self, value: Any) -> str:
        """Return a unique name for a function or class. Steps recognize the name of a class by the
        pattern CLASS. The name of a function must not match this pattern."""
        own = getattr(value, "__name__", type(value).__name__)
        name = re.sub(r"[^A-Za-z0-9_]", "_", own.replace("<lambda>", "function"))
        is_class = inspect.isclass(value)
        if (re.search(CLASS, f":{name}") is not None) != is_class:
            name = f"Class_{name}" if is_class else name.lower()
        names = chain([name], (f"{name}_{number}" for number in count(2)))
        return next(each for each in names if self._values.get(each, value) is value)


def _check_call(value: Any, step: Mapping[str, Any], field: str) -> None:
    """Raise SpecError if code cannot be called with the data and the arguments of its step."""
    name = getattr(value, "__name__", type(value).__name__)
    calls = [(value, 1, "callArgs")]
    if inspect.isclass(value):
        method = "predict_batch" if step.get("predictBatch") else "__call__"
        code = next((vars(base)[method] for base in value.__mro__ if method in vars(base)), None)
        if code is None:
            raise SpecError([Problem(field, f"'{name}' has no method {method}. Add it")])
        calls = [(value, 0, "constructorArgs")]
        calls += [(code, 2, "callArgs")] if inspect.isfunction(code) else []
    for code, count_of_data, setting in calls:
        named = {**(step.get(setting) or {})}
        named |= (step.get(_REFERENCES) or {}) if count_of_data == 0 else {}
        try:
            inspect.signature(code, follow_wrapped=False).bind(*[None] * count_of_data, **named)
        except TypeError as error:
            values = f"the values of {setting}"
            what = f"the data and {values}" if count_of_data else values
            problem = f"'{name}' does not take {what} ({error}). Change its parameters or {setting}"
            raise SpecError([Problem(field, problem)]) from None
        except ValueError:  # code written in C may have no signature
            continue


def _path_of(value: Any) -> str:
    """Return `module:name` of an object; empty if other processes cannot import it."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if module in (None, "__main__") or "<" in name:
        return ""
    try:
        target = reduce(getattr, name.split("."), sys.modules[module])
    except (AttributeError, KeyError):
        return ""
    return f"{module}:{name}" if target is value else ""


def _not_sent(value: Any, field: str, error: Exception) -> SpecError:
    """Return the error for code that cannot be pickled. It names the variables that prevent it."""
    names = [name for name, each in _variables_of(value) if not _is_picklable(each)]
    what = f"it uses {', '.join(map(repr, names))}, which" if names else "it"
    return SpecError([Problem(
        field,
        f"{what} cannot be sent to other processes ({error}). Create such an object in the code of "
        "the step, for example in the __init__ of a class",
    )])  # fmt: skip


def _is_picklable(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 - pickling calls code of the objects
        return False
    return True


def _variables_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the variables that a function or the methods of a class use."""
    functions = [value] if not inspect.isclass(value) else list(vars(value).values())
    for function in functions:
        if isinstance(function, FunctionType):
            yield from _closure_of(function)
            yield from _globals_of(function, function.__code__)


def _closure_of(function: FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue


def _globals_of(function: FunctionType, code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of globals that a function and its inner functions read."""
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME") and step.argval in function.__globals__:
            yield step.argval, function.__globals__[step.argval]
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _globals_of(function, inner)


def _imports_of(function: FunctionType, code: CodeType) -> Iterator[tuple[str, str]]:
    """Yield the names and hashes of the modules that a function and its inner functions import."""
    package = function.__globals__.get("__package__")
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for level, names, step in zip(steps, steps[1:], steps[2:], strict=False):
        if step.opname == "IMPORT_NAME" and (package or not level.argval):
            name = importlib.util.resolve_name("." * level.argval + step.argval, package)
            for module in (name, *(f"{name}.{each}" for each in names.argval or ())):
                yield from hashes_of_module(module).items()
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _imports_of(function, inner)


def _code_hash(value: Any) -> str:
    """Return a hash of the instructions of a function or class, and of all values and code that the
    instructions use. The hash is equal in all processes. It does not depend on comments and line
    numbers. Raises errors of pickling."""
    digest = _Digest()
    pickler: Any = _ContentPickler(digest)
    pickler.fast = True  # no back references: equal values need not be one object
    try:
        pickler.dump(value)
    except ValueError:  # the object contains itself
        digest = _Digest()
        cast("Any", _ContentPickler(digest)).dump(value)
    return digest.hash.hexdigest()


class _Digest:
    """A file for writing that keeps only the hash of its content."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()

    def write(self, content: Any) -> int:
        self.hash.update(content)
        return len(content)


class _ContentPickler(CloudPickler):
    """Pickles only parts of functions and classes that affect results, in a fixed order."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)  # type: ignore[no-untyped-call]
        self._seen: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, value: Any) -> Any:
        parts = self._parts(value)
        if parts is None:
            return None
        if id(value) in self._seen:
            return ("seen", self._seen[id(value)][0])
        self._seen[id(value)] = (len(self._seen), value)  # keeps `value`, so no other gets its id
        return parts

    def _parts(self, value: Any) -> Any:
        match value:
            case ModuleType():
                return ("module", value.__name__, hashes_of_module(value.__name__))
            case FunctionType() | type() if path := _path_of(value):
                return ("import", path, hashes_of_module(path))
            case type() if value.__module__ == "builtins":  # such as NoneType
                return ("builtin", value.__qualname__)
            case FunctionType():
                variables = dict(sorted({**dict(_globals_of(value, value.__code__))}.items()))
                variables |= dict(sorted(_imports_of(value, value.__code__)))
                own = (value.__defaults__, value.__kwdefaults__, dict(sorted(vars(value).items())))
                return (value.__code__, own, dict(_closure_of(value)), variables)
            case CodeType():
                names = (value.co_names, value.co_varnames, value.co_freevars, value.co_cellvars)
                counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount)
                return ("code", value.co_code, names, counts, value.co_flags, value.co_consts)
            case type():
                members = {
                    name: member
                    for name, member in sorted(vars(value).items())
                    if name not in _NO_CONTENT and not inspect.ismemberdescriptor(member)
                }
                return ("class", value.__qualname__, value.__bases__, type(value), members)
            case set() | frozenset():
                return ("set", sorted(map(_code_hash, value)))
        if type(value).__module__.startswith("torch") and hasattr(value, "is_sparse"):
            # pickled tensors contain memory addresses
            numbers = value.detach().cpu().reshape(-1).contiguous().view(sys.modules["torch"].uint8)
            return ("tensor", str(value.dtype), tuple(value.shape), numbers.numpy().tobytes())
        return None
