"""Views of a trace, of the difference of two, and of a parameter's history: text, static HTML, plotly figures."""
