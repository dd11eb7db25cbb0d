"""CPU kernels in Numba, the extra ``asgnn[fast]``; loaded by :func:`asgnn.kernels.on_cpu`."""
