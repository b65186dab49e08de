"""The world map: ranks by node, and what the recorded ranks send to each."""
