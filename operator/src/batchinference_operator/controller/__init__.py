"""The control loop, with its cache, work queue and workers."""
