"""The pipeline: runs a plan on Ray Data."""

import os
import sys

from batchinference.pipeline.autoload import without_autoload

without_autoload(os.environ, sys.modules)
