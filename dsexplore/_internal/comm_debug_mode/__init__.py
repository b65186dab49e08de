"""``CommDebugMode`` with the interface of torch's class, based on this package's recorder."""
