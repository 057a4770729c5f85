"""Symbols, levels and gaps in fewer bits, without loss: rANS (`entropy`, and of bit planes `planes`), Elias, Rice.

All of it is done on the CPU, with the kernels of the same names; vectors are quantized before, wherever they are.
"""
