"""Copying and checking in one pass of compiled code, where a C++ compiler and the CPU allow it (`argosy.native`).

    moving.cpp   the pass
    library.py   its functions, for ctypes

Optional: `argosy.weightsync.copying` gives the same values without it, slower.
"""
