"""How many different shapes the training's batches have."""

PERIOD, WINDOW = 1000, 100
"""Of a thousand batches, the first hundred are looked at."""
_EXAMPLES = 4

_seen = set()
_counted = 0
found = None  # {"batches", "distinct", "examples"} of the last full window, for the hello


def note(index, shape):
    """Count the shape of batch number ``index``. Called for the first ``WINDOW`` batches of each ``PERIOD``."""
    global _counted, found
    if index % PERIOD == 0:
        _seen.clear()
        _counted = 0
    _seen.add(shape)
    _counted += 1
    if _counted == WINDOW:
        examples = [[int(size) for size in one] for one in list(_seen)[:_EXAMPLES]]
        found = {"batches": WINDOW, "distinct": len(_seen), "examples": sorted(examples)}


def reset():
    """In a forked child."""
    global _counted, found
    _seen.clear()
    _counted, found = 0, None
