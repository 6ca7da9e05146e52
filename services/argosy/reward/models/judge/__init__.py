"""A language model as judge: prompt, speaker, verdict, and what is remembered of it."""
