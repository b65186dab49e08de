"""A trace, and the difference of two: text, static HTML, plotly figures, and the counted tables behind them."""
