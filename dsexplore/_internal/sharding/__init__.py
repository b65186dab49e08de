"""What `dsexplore.sharding` is made of: the shards of each rank, and how tensors are redistributed."""
