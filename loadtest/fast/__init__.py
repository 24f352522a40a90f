"""How fast it is, beside peers in the same run."""
