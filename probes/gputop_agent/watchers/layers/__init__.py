"""Time and memory of layers, in steps that are watched."""
