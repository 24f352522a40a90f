"""The one path of a request, and what goes on beside it."""
