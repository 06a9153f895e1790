"""A user's script on fake tensors: run, built or only read."""
