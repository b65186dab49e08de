"""What `dsexplore.cost` is made of: clusters, times, memory, and the choice of a mesh."""
