"""The ops: one file each, holding the argument check and the torch reference of the same maths.

An op is the maths only. A device decides how it runs: the CPU device calls the reference, the CUDA
device launches a kernel. Ops never allocate what they return: every result goes to a buffer that
the caller owns.
"""
