"""One file per revision of the schema; written by hand, never changed once released."""
