"""The trainer service: forward, backward, optimizer step, checkpoints, and publishing of weights."""
