"""Code of `dsexplore.lessons`: exercises, and simulated ranks that check answers to them."""
