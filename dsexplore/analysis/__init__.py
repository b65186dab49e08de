"""What a trace shows beyond its tables: pure functions from traces to findings, reports and frames."""
