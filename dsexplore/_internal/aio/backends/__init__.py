"""Engines that move requests between memory and a file: one small interface, several mechanisms."""
