"""A plugin of vLLM. It ends an engine process when the process that started the engine has ended.
Otherwise, the engine would keep its memory and its GPUs after its parent was killed."""

from __future__ import annotations

import multiprocessing
import os
from threading import Thread
from typing import Any


def end_with_parent() -> None:
    """Make this process end when its parent ends, unless this is the main process. vLLM calls this
    function in all of its processes."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)
