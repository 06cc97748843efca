"""Measures the import of the operator, without and with the library `kubernetes`.

`python tests/bench/operator_import.py` prints for each the CPU seconds and the peak memory in MiB.
"""

from __future__ import annotations

import subprocess
import sys

MEASURE = """
import importlib, resource, sys, time
sys.modules.update(dict.fromkeys(sys.argv[2:]))  # kopf imports the library if it is installed
start = time.process_time()
for name in sys.argv[1].split(","):
    importlib.import_module(name)
usage = resource.getrusage(resource.RUSAGE_SELF)
print(f"{time.process_time() - start:.2f} s, {usage.ru_maxrss // 1024} MiB")
"""
OPERATOR = "batchinference_operator.main"


def main() -> None:
    cases = {"without": (OPERATOR, "kubernetes"), "with": (f"{OPERATOR},kubernetes.aio.client",)}
    for case, arguments in cases.items():
        command = [sys.executable, "-c", MEASURE, *arguments]
        print(case, subprocess.run(command, check=True, capture_output=True, text=True).stdout)


if __name__ == "__main__":
    main()
