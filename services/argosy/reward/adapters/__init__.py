"""Rewards from servers that speak something else than our gRPC: plain HTTP, NeMo Gym, verifiers."""
