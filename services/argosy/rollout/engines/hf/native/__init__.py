"""The passes of Llama-like models on CPUs in compiled code: a small C++ library, compiled where it runs.

    decode.cpp   a pass and the sampler, over AVX-512 and AMX
    layout.py    the structures that it reads, for ctypes
    compiler.py  source → shared library, once per machine; None where there is no compiler or the CPU can't
    model.py     a Hugging Face module's weights as the library reads them

Everything here is optional: without it the engine runs the module's own code, which is also what the self-check at
start compares it with.
"""
