"""Requests to an HTTP endpoint: request bodies, rate limit, retries and response handling."""

from __future__ import annotations

from batchinference.pipeline.runtimes.http.api import ApiAdapter, form_of
from batchinference.pipeline.runtimes.http.client import Credentials, Endpoint
from batchinference.pipeline.runtimes.http.retry_policy import RequestFailed

__all__ = ["ApiAdapter", "Credentials", "Endpoint", "RequestFailed", "form_of"]
