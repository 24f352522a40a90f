"""Settings become objects: who is made of what, and nothing else."""
