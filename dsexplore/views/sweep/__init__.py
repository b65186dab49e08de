"""A sweep of a disk: the setting to take, the heatmaps behind it, plotly figures, and an explorer."""
