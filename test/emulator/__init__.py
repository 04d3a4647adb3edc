"""Kernels of ``csrc/ops`` on the CPU: the same sources, compiled by g++, thread by thread."""
