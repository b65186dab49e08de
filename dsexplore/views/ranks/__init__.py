"""What the ranks of a cell printed and returned."""
