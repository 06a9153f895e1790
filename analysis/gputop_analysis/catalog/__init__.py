"""The packaged tables of GPUs, prices and models, each row with its source."""
