"""What a program computes between its collectives: FLOPs, bytes moved, and bytes held."""
