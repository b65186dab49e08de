"""The view of what the ranks of a cell printed and returned."""
