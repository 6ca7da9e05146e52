"""C++ that is compiled where it runs, for the CPU at hand: what the embedded engine and the trainer have in common.

compiler.py  source → shared library, once per machine; None where there is no compiler or the CPU can't
numbers.h    registers of numbers, bfloat16, e^x; on the include path of every source
"""
