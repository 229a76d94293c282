"""What kernels of mixtures of experts share: the problem, the routing, and its plan on the device."""
