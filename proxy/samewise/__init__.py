"""Samewise: a caching deterministic inference proxy for OpenAI-compatible servers."""
