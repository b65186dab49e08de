"""What `dsexplore.aio` is made of: the handle, its engines, and what is measured with them."""
