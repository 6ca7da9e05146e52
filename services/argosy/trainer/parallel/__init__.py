"""How ranks share a model: the mesh and what is laid over it."""
