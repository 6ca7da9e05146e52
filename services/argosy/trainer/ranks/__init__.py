"""Several processes that are one trainer: who computes what, how they are told, and how they end together.

partition    which rows and micro-batches each rank computes
framing      messages over pipes: JSON and raw bytes, nothing that runs code
commands     what the ranks can be told, and how arguments and answers become messages
group        starts the ranks, sends commands, notices the first failure and ends all
backend      the `Backend` that rank 0's core talks to
rendezvous   the process group that the ranks compute in
worker       the command loop of ranks 1, 2, …
"""
