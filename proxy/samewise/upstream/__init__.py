"""The backends: how they are spoken to, what they are, and which of them is asked."""
