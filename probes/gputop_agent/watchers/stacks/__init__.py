"""Where threads stand, by samples of their stacks."""
