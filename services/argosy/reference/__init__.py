"""The reference service: log-probs of given tokens under frozen weights."""
