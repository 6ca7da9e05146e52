"""The rollout service: prompts in, sampled tokens with exact log-probs out, weights swapped in between."""
