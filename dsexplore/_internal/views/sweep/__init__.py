"""Views of a sweep of a disk: the recommended setting, heatmaps, plotly figures, and an explorer."""
