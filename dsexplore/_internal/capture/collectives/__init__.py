"""What is seen of each collective: the ops of torch's dispatcher, where they are observed, and their process groups."""
