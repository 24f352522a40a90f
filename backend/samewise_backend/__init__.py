"""The backend side of the environment contract: a manifest, vLLM started deterministically, a reference engine."""
