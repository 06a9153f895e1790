"""DataLoaders: their lines, workers, batches."""
