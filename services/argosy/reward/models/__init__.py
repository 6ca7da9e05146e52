"""Rewards by models: a scoring model here or behind HTTP, and a language model as judge.

torch is imported only here, and only in `network`, when a scoring model is really loaded.
"""
