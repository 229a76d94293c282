"""The gang: rank processes that evaluate one config together, and their supervisor."""
