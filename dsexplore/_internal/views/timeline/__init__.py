"""The timeline: spans in lanes, as a drawing, as text, and as a widget; and which ranks wait for which."""
