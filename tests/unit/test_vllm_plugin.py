"""The processes of vLLM's engine end with the process that has started them."""

from __future__ import annotations

import subprocess
import sys

PARENT = """
import multiprocessing, time
from batchinference.vllm_plugin import end_with_parent

def child():
    end_with_parent()
    print("started", flush=True)
    time.sleep(30)
    print("outlived its parent", flush=True)

multiprocessing.get_context("fork").Process(target=child).start()
"""


def test_engine_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        assert parent.stdout.read() == b"", "the output ends with the last process"
