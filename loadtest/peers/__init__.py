"""What Samewise is compared with: each configured well, and its configuration beside it."""
