"""Clients: each implements the Protocol of its role, so that the loop does not know where the work runs."""
