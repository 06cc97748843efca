"""An HTTP service with OpenAI's Batch API. Each batch runs as a BatchInference.

All state is in the BatchInferences and in the object store, so any replica can answer a request."""
