"""Flash decode: the problem, its device code, its launchers and its reference."""
