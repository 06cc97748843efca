"""Asking an HTTP endpoint: what is sent, how fast, how often again, and what an answer means."""

from __future__ import annotations

from batchinference.pipeline.runtimes.http.api import ApiAdapter, form_of
from batchinference.pipeline.runtimes.http.client import Endpoint
from batchinference.pipeline.runtimes.http.credentials import Credentials
from batchinference.pipeline.runtimes.http.errors import RequestFailed

__all__ = ["ApiAdapter", "Credentials", "Endpoint", "RequestFailed", "form_of"]
