"""The backends of Samewise: vLLM with the environment contract, and a reference engine on transformers."""
