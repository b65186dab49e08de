"""The world map: ranks grouped by node, and what the recorded ranks send to each."""
