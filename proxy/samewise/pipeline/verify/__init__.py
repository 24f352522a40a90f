"""Recomputation in the background: does the backend still say what the cache says?

`offer` (which hits), `room` (may the upstreams be asked now), `recompute` (one answer again), `judge` (what came of
it), `verifier` (the queue, and what follows), `consistency` and `episodes` (the share that agrees, and what is done
when it falls).
"""
