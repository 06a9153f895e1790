"""Event logs built by hand: allocate and free by name, as a trace would write them down."""

from gputop_analysis.vram.eventlog import parse

MIB = 1 << 20


class LogBuilder:
    """Collects storages, events and marks; ``log()`` is what a reader of the file would get."""

    def __init__(self):
        self.strings, self.storages, self.events, self.marks = [], [], [], []

    def mark(self, phase, step=0):
        self.marks.append([len(self.events), phase, step])
        return self

    def make(self, size, category="activations", layer=-1, module="", operator="mul", stream=0):
        row = [
            size,
            stream,
            self._index(category),
            self._index(operator),
            self._index(module),
            layer,
        ]
        self.storages.append(row)
        self.events.append(len(self.storages))
        return len(self.storages)

    def free(self, *storages):
        self.events.extend(-storage for storage in storages)
        return self

    def log(self, **meta):
        document = {"format": 1, "meta": meta, "strings": self.strings, "storages": self.storages}
        return parse({**document, "events": self.events, "marks": self.marks})

    def _index(self, text):
        if text not in self.strings:
            self.strings.append(text)
        return self.strings.index(text)


def storages(log, category, of_layers=False):
    """Those of a category; ``of_layers``: only those that belong to a layer."""
    every = range(1, len(log.bytes))
    named = [one for one in every if log.strings[log.category[one]] == category]
    return [one for one in named if log.layer[one] >= 0] if of_layers else named


def training(layers, unit=MIB, checkpointing=False, optimizer=True, vocab=7):
    """The events of two training steps of a made-up model with ``layers`` equal layers."""
    build = LogBuilder().mark("init")
    build.make(vocab * unit, "weights", -1, "embed")
    weights = [build.make(5 * unit, "weights", layer, f"layers.{layer}") for layer in range(layers)]
    states = []
    for step in range(2):
        gradients = _passes(build, step, layers, unit, checkpointing, vocab)
        if optimizer:
            build.mark("optimizer", step)
            states = states or [
                build.make(10 * unit, "optimizer", layer, f"layers.{layer}")
                for layer in range(layers)
            ]
            roots = [
                build.make(5 * unit, "temporaries", layer, f"layers.{layer}", "sqrt")
                for layer in range(layers)
            ]
            build.free(*reversed(roots))
        build.mark("zero_grad", step).free(*gradients)
    assert weights
    return build.log(layers=layers, versions={"torch": "2.13"}, notes=["made up"])


def _passes(build, step, layers, unit, checkpointing, vocab):
    build.mark("forward", step)
    output, kept = build.make(2 * unit, "activations", -1, "embed"), []
    for layer in range(layers):
        inner = build.make(9 * unit, "activations", layer, f"layers.{layer}.mlp")
        scratch = build.make(3 * unit, "temporaries", layer, f"layers.{layer}.mlp", "silu")
        out = build.make(2 * unit, "activations", layer, f"layers.{layer}")
        build.free(scratch)
        if checkpointing:
            build.free(inner)
        kept.append((output, inner))
        output = out
    build.mark("loss", step)
    logits = build.make(vocab * unit, "logits_loss", -1, "head")
    build.mark("backward", step)
    flow = build.make(2 * unit, "temporaries", -1, "head", "mm")
    build.free(logits, output)
    gradients = []
    for layer in reversed(range(layers)):
        into, inner = kept[layer]
        if checkpointing:
            inner = build.make(9 * unit, "activations", layer, f"layers.{layer}.mlp")
        gradients.append(build.make(5 * unit, "gradients", layer, f"layers.{layer}"))
        onward = build.make(2 * unit, "temporaries", layer, f"layers.{layer}", "mm")
        build.free(flow, inner, into)
        flow = onward
    build.free(flow)
    return gradients
