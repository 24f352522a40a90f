"""The doors: what comes in is parsed here, and what goes out is rendered here."""
