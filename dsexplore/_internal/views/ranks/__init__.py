"""The view of what each rank of a cell printed and returned."""
