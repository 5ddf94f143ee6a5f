"""The embedded runtime: a Temporal dev server on this machine, found, fetched, started and shared."""
