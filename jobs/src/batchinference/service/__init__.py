"""An HTTP service with the Batch API of OpenAI, which runs batches as BatchInferences.

The state is in the BatchInferences and in the object store, so any replica can answer a request.
"""
