"""The comms logger's summary as a table and as plotly figures."""
