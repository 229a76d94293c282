"""Commands that measure: one problem, many sizes, one config, a whole reduced space."""
