"""Private parts of Ray that this project uses, for the Ray version pinned in pyproject.toml.

import-linter forbids other modules to import them from Ray. There is one module for each part of
Ray, so that a worker imports only what it needs.
"""
