"""A pass for torch.compile: collectives and GEMMs of a graph become tuned operators where these are faster."""
