"""How many different shapes the training's batches have."""

from typing import Any

PERIOD, WINDOW, ENOUGH = 1000, 100, 90
"""Of a thousand batches, the first hundred are looked at."""
_EXAMPLES = 4
_MORE = 1.15  # values of a sample beside the most before


class Window:
    """Shapes of the batches that were looked at, of the last ``PERIOD``."""

    def __init__(self):
        self.seen: "set[tuple[int, ...]]" = set()
        self.counted = 0
        #: {"batches", "distinct", "examples"} of the last window, for the hello
        self.result: "dict[str, Any] | None" = None
        self.last: Any = None  # shape of the batch before
        self.first_values = self.most_values = self.grew_at = 0  # of a sample


window = Window()


def description():
    """The ``shapes`` entry of the hello; empty before there is anything to tell."""
    fields = dict(window.result or {})
    if window.grew_at:
        fields["grew_at"] = window.grew_at
        fields["grown"] = round(window.most_values / window.first_values, 2)
    return fields


def changed(index, shape, axis):
    """Note whether samples of batch ``index``, of another shape than those before, are larger."""
    window.last = shape
    if not shape[axis]:
        return
    values = shape.numel() // shape[axis]
    window.first_values = window.first_values or values
    if values > _MORE * window.most_values:
        window.most_values, window.grew_at = values, index


def note(index, shape):
    """Count the shape of batch ``index``. For the first ``WINDOW`` batches of each ``PERIOD``."""
    window.seen.add(shape)
    window.counted += 1
    if index % PERIOD == WINDOW - 1:
        if window.counted >= ENOUGH:
            examples = [list(map(int, example)) for example in list(window.seen)[:_EXAMPLES]]
            window.result = {
                "batches": window.counted,
                "distinct": len(window.seen),
                "examples": sorted(examples),
            }
        window.seen.clear()
        window.counted = 0


def reset():
    """In a forked child."""
    window.__init__()
