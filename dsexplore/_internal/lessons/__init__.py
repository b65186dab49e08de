"""What `dsexplore.lessons` is made of: exercises, and how simulated ranks judge them."""
