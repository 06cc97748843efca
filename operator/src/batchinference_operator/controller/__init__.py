"""The control loop: the cache, the work queue and the reconcile workers."""
