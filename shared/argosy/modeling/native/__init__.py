"""Layers and output head of Llama-like models in compiled code, forward and backward, for CPUs with AMX.

    numbers, gemm, attention, layer, head (.h), training.cpp   the library
    library.py     its structures and functions, for ctypes, and the memory that it works in
    layers.py      a decoder layer as an autograd function, in place of a transformers layer
    output_head.py log-probs and entropy of given tokens as an autograd function

Everything here is optional: without it the torch code beside it computes the same, which the tests compare it with.
"""
