"""How samples are drawn and how they end: the rules that are the same in every engine that can keep them.

noise.py      uniform numbers keyed by (seed, purpose, sample id, token position)
filters.py    top-k, top-p, min-p
sampler.py    logits → token ids and exact log-probs
stops.py      stop ids, stop strings over token boundaries
sample.py     one request in flight
"""
