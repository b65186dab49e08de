"""Code of `dsexplore.sharding`: the shards of each rank, and the redistribution of tensors."""
