"""What every static view shares: escaping, theme, ids that depend on content, and the page around a fragment."""
