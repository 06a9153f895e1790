"""How many different shapes the training's batches have."""

PERIOD, WINDOW, ENOUGH = 1000, 100, 90
"""Of a thousand batches, the first hundred are looked at."""
_EXAMPLES = 4

_seen = set()
_counted = 0
found = None  # {"batches", "distinct", "examples"} of the last window, for the hello


def note(index, shape):
    """Count the shape of batch number ``index``. Called for the first ``WINDOW`` batches of each ``PERIOD``."""
    global _counted, found
    _seen.add(shape)
    _counted += 1
    if index % PERIOD == WINDOW - 1:
        if _counted >= ENOUGH:
            examples = [[int(size) for size in one] for one in list(_seen)[:_EXAMPLES]]
            found = {"batches": _counted, "distinct": len(_seen), "examples": sorted(examples)}
        _seen.clear()
        _counted = 0


def reset():
    """In a forked child."""
    global _counted, found
    _seen.clear()
    _counted, found = 0, None
