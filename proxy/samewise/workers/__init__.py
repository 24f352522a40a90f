"""Several processes that serve as one: a supervisor, and what the workers tell each other."""
