"""Views of a trace and of the difference of two: text, static HTML, plotly figures, and the tables they draw."""
