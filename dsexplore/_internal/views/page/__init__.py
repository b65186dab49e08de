"""Parts that all views share: escaping and the page around a fragment, the theme, figures with a static twin."""
