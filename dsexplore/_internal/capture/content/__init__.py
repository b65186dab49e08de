"""The content of one recording, and the tables that are made of it."""
