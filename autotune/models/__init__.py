"""Whole models: the problems of a forward, how often each is called, what tuning them would save."""
