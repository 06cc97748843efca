"""Bounds the time and the memory of chat templates.

A template is a program in the files of a model. The sandbox of Jinja bounds what it reads, but not
what it computes: loops may run for days, and one expression may allocate all memory.
"""

from __future__ import annotations

import ctypes
import operator
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from batchinference.pipeline.storage.memory_limit import memory_limit

SECONDS = 30.0
"""Maximum time of a template. Usual templates take less than a millisecond."""
POLL_SECONDS = 1.0
MEMORY_BYTES = 1 << 30
TEXT_LENGTH = 1 << 26
"""Maximum number of characters of a prompt."""
NUMBER_BITS = 1 << 12
"""Maximum size of a product or power. Python cannot interrupt the arithmetic of long numbers."""


class TemplateTimeout(BaseException):
    """The template takes too long. No handler of a library for an Exception catches it."""


def limited(apply_template: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that applies a chat template within limits of time and memory. It raises
    ValueError if a limit is exceeded."""

    _limit_numbers()

    def apply(*args: Any, **options: Any) -> Any:
        try:
            with memory_limit(MEMORY_BYTES), _watchdog.limit(SECONDS):
                text = apply_template(*args, **options)
        except TemplateTimeout:
            raise ValueError(f"the chat template takes more than {SECONDS:g} seconds") from None
        except MemoryError:
            raise ValueError(f"the chat template takes more than {MEMORY_BYTES} bytes") from None
        if isinstance(text, str) and len(text) > TEXT_LENGTH:
            raise ValueError(f"the chat template makes more than {TEXT_LENGTH} characters")
        return text

    return apply


class _Watchdog:
    """Raises TemplateTimeout in threads that exceed their time. One thread watches all others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._deadlines: dict[int, float] = {}
        self._runs = False

    @contextmanager
    def limit(self, seconds: float) -> Iterator[None]:
        """Raise TemplateTimeout in this thread if the block takes longer."""
        thread = threading.get_ident()
        with self._lock:
            self._deadlines[thread] = time.monotonic() + seconds
            if not self._runs:
                threading.Thread(target=self._watch, daemon=True).start()
                self._runs = True
        try:
            yield
        except TemplateTimeout:
            raise
        except BaseException:
            self._end(thread)
            raise
        self._end(thread)

    def _end(self, thread: int) -> None:
        """Forget the deadline. If it has passed, wait for the TemplateTimeout that is on its way.

        Removing it instead would leave Python's request to interrupt the thread set: all code would
        be slower, and traced code would hang.
        """
        try:
            with self._lock:
                in_time = self._deadlines.pop(thread, None) is not None
            for _ in range(0 if in_time else 100):
                time.sleep(0)
        except TemplateTimeout:
            pass

    def _watch(self) -> None:
        never = threading.Event()
        while not never.wait(POLL_SECONDS):
            with self._lock:
                now = time.monotonic()
                for thread in [one for one, end in self._deadlines.items() if end < now]:
                    del self._deadlines[thread]
                    _raise_timeout_in(thread)


_watchdog = _Watchdog()


def _raise_timeout_in(thread: int) -> None:
    """Raise TemplateTimeout in a thread at its next instruction."""
    error = ctypes.py_object(TemplateTimeout)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), error)


@cache
def _limit_numbers() -> None:
    """Let Jinja's sandboxes check the products and powers of templates that are compiled later."""
    from jinja2.sandbox import SandboxedEnvironment

    SandboxedEnvironment.intercepted_binops = frozenset(("*", "**"))
    SandboxedEnvironment.default_binop_table |= {"*": _product, "**": _power}


def _product(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
    return operator.mul(left, right)


def _power(base: Any, exponent: Any) -> Any:
    if isinstance(base, int) and isinstance(exponent, int):
        _check_bits(base.bit_length() * max(0, exponent))
    return operator.pow(base, exponent)


def _check_bits(bits: int) -> None:
    if bits > NUMBER_BITS:
        raise ValueError(f"a number of the chat template has more than {NUMBER_BITS} bits")
