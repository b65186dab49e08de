"""Views of the ranks of a job: what each of a cell printed and returned, and why a job hangs."""
