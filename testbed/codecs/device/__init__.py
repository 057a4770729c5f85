"""The hot loops of the codecs as torch operations, for vectors that are not on the CPU.

Each function does what the numba kernel of the same name does for a whole layer, on the device of what it is given,
and hands back tensors there; what it hands back is the same to the bit for the same input, key and scales. Sums are
taken in float64 throughout, so that scales differ from the kernels', which begin in float32, by less than 1e-6.

They are plain functions of tensors and keep nothing. On a CPU they work too, several times slower than the kernels.
Products and sums of floats are separate operations, because a fused one would round differently.
"""
