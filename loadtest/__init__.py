"""Bounded scenarios that measure what the documentation claims: `python -m loadtest NAME`."""
