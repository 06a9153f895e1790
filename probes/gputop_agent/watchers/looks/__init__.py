"""Looks at gradients, parameters and optimizers in a few steps."""
