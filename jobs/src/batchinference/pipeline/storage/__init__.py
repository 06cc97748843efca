"""Access to bytes: local files, object stores, URLs and retries. Knows nothing about jobs."""
