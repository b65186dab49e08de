"""What every view shares: escaping and the page around a fragment, the theme, figures with a static twin."""
