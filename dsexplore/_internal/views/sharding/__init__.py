"""Views of a `Sharding`: pictures of its tensors, tables of what each rank holds, memory by rank."""
