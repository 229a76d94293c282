"""A fleet: many hosts tune one list of problems. The list, leases and results are rows; an engine places the work."""
