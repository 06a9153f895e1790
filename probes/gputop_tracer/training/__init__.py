"""Steps, optimizers and precisions of a training, by what they allocate."""
