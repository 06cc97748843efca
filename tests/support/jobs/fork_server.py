"""Imported by the fork server only: runs one job, so that its children find all modules loaded and
all caches filled, and keeps the garbage collector from copying the memory that they share."""

import gc
import tempfile
from pathlib import Path

from support.jobs.without_ray import run_without_ray, small_job, write_input

with tempfile.TemporaryDirectory() as directory:
    run_without_ray(small_job(write_input(Path(directory) / "in"), Path(directory) / "out"))
gc.disable()
gc.freeze()
