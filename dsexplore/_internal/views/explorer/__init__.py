"""The live explorer of a trace: linked filters, module tree, figure and tables."""
