"""Models for trainer and reference: loading, packed forward, chunked log-probs."""
