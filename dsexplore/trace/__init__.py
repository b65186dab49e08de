"""What a trace is: tables, the `Trace` around them, files, selections, merges, differences and exports."""
