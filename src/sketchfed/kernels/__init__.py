"""Hot loops: numba on the CPU, a torch twin on every other device, the same integers in both."""
