"""Pure rules: no clock, no randomness, no waiting, no logging, no environment."""
