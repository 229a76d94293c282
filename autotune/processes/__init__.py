"""Processes that end: what others owe them, and what of theirs does not outlive them for long."""
