"""What the public modules are made of: names in here may change in any version."""
