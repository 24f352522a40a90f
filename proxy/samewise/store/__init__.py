"""Where entries, control events and records are kept: memory, SQLite, Redis, and memory in front of either."""
