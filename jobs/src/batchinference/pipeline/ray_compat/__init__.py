"""The private parts of Ray that this product uses, of the version that pyproject.toml pins.

import-linter keeps all other modules from importing them. One module for each part of Ray, so that
a worker imports only what it needs.
"""
