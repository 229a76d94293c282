"""All-reduce + residual + RMSNorm: the problem, its device code and its launchers."""
