"""``CommDebugMode`` with the interface of torch's class, on this package's recorder."""
