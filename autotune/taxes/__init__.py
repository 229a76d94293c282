"""The three taxes of a bulk-synchronous program, measured: the ladder of variants, its arithmetic, the protocol."""
