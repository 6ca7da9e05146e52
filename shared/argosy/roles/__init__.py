"""Protocols that the controller calls. They don't know where the work runs: cores in this process and gRPC clients both
implement them, and one contract suite runs over both.

All calls are coroutines. Results are matched by sample id. Errors are those of `argosy.types.errors`.
"""
