"""The reward service: scorers in worker processes. Importing it loads neither torch nor sympy nor grpc."""
