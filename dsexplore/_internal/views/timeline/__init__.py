"""The timeline: spans in lanes, as a drawing, as text, and as a widget with zoom and range selection."""
