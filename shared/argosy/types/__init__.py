"""Frozen records that every part of Argosy shares. Depends on numpy and pyarrow only."""
