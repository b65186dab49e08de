"""The live explorer of a trace: filters, module tree, figure and tables that follow one another."""
