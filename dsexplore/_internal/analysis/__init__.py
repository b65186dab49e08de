"""Analyses of traces: pure functions from their tables to findings, reports and frames."""
