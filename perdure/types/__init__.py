"""Plain data: what is stored, sent and returned. No I/O, no Temporal."""
