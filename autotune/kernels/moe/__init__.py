"""The common part of the kernels of mixtures of experts: the problem, the routing, and its plan on the device."""
