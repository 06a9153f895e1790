"""How far updates move the weights of each layer, relative to the weights, and the layer whose
updates grew most before a loss that jumped.

Some values of each parameter are compared before and after the update. The last steps are kept; a
``spike_origin`` event is sent when a loss stands out.
"""

from collections import deque
from statistics import median

from gputop_agent.runtime import late, transport
from gputop_agent.runtime.session import session

MAX_VALUES = 256  # of each parameter
KEPT_STEPS = 40
LOSSES, LEAST_LOSSES = 50, 20
STANDS_OUT, LEAST_GROWTH = 8.0, 0.2  # robust standard deviations, and part of the median
JUST_BEFORE = 3  # steps of which the largest update counts
MAX_EVENTS = 10
_TINY = 1e-12


class Updates:
    """Relative updates by layer of the last steps."""

    def __init__(self):
        self.recent = deque(maxlen=KEPT_STEPS)  # (step, {layer: relative update})
        self.losses = deque(maxlen=LOSSES)
        self.sent = 0
        self._before = []  # (layer, values, copy of them)

    def before(self, optimizer, layers):
        """The update begins."""
        if not late.may_look():
            return
        self._before = []
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                owner = layers.owners.get(id(parameter))
                if owner is not None and parameter.grad is not None and late.is_plain(parameter):
                    values = parameter.detach().view(-1)[:MAX_VALUES]
                    self._before.append((owner, values, values.clone()))

    def after(self):
        """The update is done. Where the weights are on a GPU, numbers are read with the next."""
        torch, sizes_before = session.torch, self._before
        self._before = []
        if not sizes_before or not late.may_look():
            return
        devices = {values.device for _, values, _ in sizes_before}
        if len(devices) != 1:
            return
        old = [copy for _, _, copy in sizes_before]
        sizes = torch.stack([norm.float() for norm in torch._foreach_norm(old)])
        moved = torch._foreach_sub([values for _, values, _ in sizes_before], old)
        changes = torch.stack([norm.float() for norm in torch._foreach_norm(moved)])
        values = late.Late()
        values.put("sizes", late.listed, [torch.cat((sizes, changes))])
        self.recent.append((session.step, [owner for owner, _, _ in sizes_before], values))

    def loss(self, step, value, layers):
        """A loss was read: say what grew where it stands out."""
        before = list(self.losses)
        self.losses.append(value)
        if len(before) < LEAST_LOSSES or self.sent >= MAX_EVENTS:
            return
        level = median(before)
        spread = 1.4826 * median(abs(value_ - level) for value_ in before)
        if value < level + max(STANDS_OUT * spread, LEAST_GROWTH * abs(level)):
            return
        grown = self._grown_most(step)
        if grown is not None:
            layer, size, usual, at = grown
            self.sent += 1
            transport.send_event(
                "spike_origin",
                step=step,
                loss=value,
                layer=layers.names[layer],
                relative_update=size,
                usual_update=usual,
                update_step=at,
            )

    def _grown_most(self, step):
        """``(layer, its largest relative update just before, the median of it, step)``."""
        courses = {}
        for at, owners, values in self.recent:
            numbers = values.read()
            if numbers is None or at >= step:
                continue
            for layer, size in _by_layer(owners, numbers["sizes"]).items():
                courses.setdefault(layer, []).append((size, at))
        best = None
        for layer, course in courses.items():
            usual = [size for size, _ in course[:-JUST_BEFORE]]
            if len(usual) < JUST_BEFORE:
                continue
            size, at = max(course[-JUST_BEFORE:])
            growth = size / max(median(usual), _TINY)
            if best is None or growth > best[0]:
                best = growth, (layer, size, median(usual), at)
        return best[1] if best is not None and best[0] > 1 else None


def _by_layer(owners, known):
    sizes, changes = {}, {}
    for index, owner in enumerate(owners):
        sizes[owner] = sizes.get(owner, 0.0) + known[index] ** 2
        changes[owner] = changes.get(owner, 0.0) + known[len(owners) + index] ** 2
    return {owner: (changes[owner] / max(sizes[owner], _TINY)) ** 0.5 for owner in sizes}
