"""Training through megatron-core: tensor parallel layers over the same packed batches. Optional extra `megatron`."""
