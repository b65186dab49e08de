"""What is known of the values of tensors: summaries, and which differ between ranks."""
