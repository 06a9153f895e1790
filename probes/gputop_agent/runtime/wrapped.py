"""Data sets that lie in one another, as in torch's ``Subset`` and its like."""

_MOST = 4


def datasets(outermost):
    """A data set and those that it wraps, the outermost first; none for None."""
    dataset = outermost
    for _ in range(_MOST):
        if dataset is None:
            return
        yield dataset
        dataset = getattr(dataset, "__dict__", {}).get("dataset")
