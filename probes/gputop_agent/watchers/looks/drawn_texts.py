"""Texts that the network is asked for token by token, for some steps after a look begins: whether
it is trained on them next, and what reading each text again for each token takes.

A call that reads one token more than the call before, or one token alone as with a cache of keys
and values, goes on with the text. The tokens that came so are sought among those that the network
is trained on: a row that holds eight of them in their order was drawn.
"""

import weakref
from collections import deque
from time import monotonic_ns
from typing import Any

from gputop_agent.runtime import frames, late, modes
from gputop_agent.runtime.session import session

STEPS = 64  # that are followed at most: texts are drawn once for several updates
MOST_RUNS = 8  # texts of a look whose time is kept
SOUGHT_RUNS = 4  # of which the last are sought among what is trained on
COMPARISONS = 4
MIN_CALLS = 9  # the first reads the prompt
ROWS = 8  # of a batch that are looked at
MOST = 0.5  # of them, that must hold what was drawn
MIN_KINDS = 3  # tokens of a row that differ: padding is no text
MIN_GROWTH = 4  # tokens, from which on the time of a call is compared with its length
NAMES = ("decoder_input_ids", "input_ids")
LABELS = ("labels",)  # what a decoder is trained on, which shifts them by itself
_FACTORS = tuple(pow(0x9E3779B1, power, (1 << 31) - 1) for power in range(1, MIN_CALLS))


class DrawnTexts:
    """The texts of the steps after a look."""

    is_on = False
    """Whether forwards are to be told here."""

    def __init__(self):
        self._first_step = self._last_step = -1
        self._run: Any = None
        self._ended: "list[Any]" = []
        self._sought: "deque[Any]" = deque(maxlen=SOUGHT_RUNS)
        self._matches = late.Late()
        self._compared = 0

    def begin(self, step):
        """Forwards of the next steps are told here."""
        self.__init__()
        self.is_on = True
        self._first_step, self._last_step = step + 1, step + STEPS

    @modes.unseen
    def before(self, module, args, kwargs, graded):
        """The outermost forward of a module begins."""
        if session.step > self._last_step or len(self._ended) >= MOST_RUNS:
            self._end()
            return
        tokens = _tokens(args, kwargs, NAMES)
        if tokens is None:
            if graded and self._run is None:
                self._end()  # what it is trained on is no text
            return
        if graded:
            self._end_run()
            if self._sought:
                self._compare(_tokens(args, kwargs, LABELS), tokens)
                self._read_matches()
        elif self._run is None or not self._run.goes_on(module, tokens):
            self._end_run()
            self._run = _DrawnText(module, tokens)

    def fields(self):
        """Fields of the event, of the steps after the look before."""
        self._end()
        self._read_matches()
        again = [run for run in self._ended if run.reads_again]
        if not again:
            return {}
        return {
            "drawn_steps": max(1, self._last_step - self._first_step + 1),
            "drawn_tokens": sum(run.calls for run in again) // len(again),
            "drawn_ms": [round(run.spent_ns / 1e6, 3) for run in again],
            "read_again_ms": [round(run.again_ns() / 1e6, 3) for run in again],
            "drawn_at": again[-1].site,
        }

    def _read_matches(self):
        if any(share >= MOST for share in (self._matches.read() or {}).values()):
            session.trains_on_drawn = True

    def _end(self):
        self._end_run()
        if self.is_on:
            self.is_on, self._last_step = False, min(self._last_step, session.step)

    def _end_run(self):
        run, self._run = self._run, None
        if run is not None and run.calls >= MIN_CALLS and run.is_text:
            self._ended.append(run)
            self._sought.append(run.columns)

    def _compare(self, labels, tokens):
        batch = tokens if labels is None else labels
        if self._compared == COMPARISONS or batch.shape[1] < MIN_CALLS or not late.may_look():
            self._sought.clear()
            return
        rows = batch[:ROWS].contiguous()
        parts = [rows, *(column for columns in self._sought for column in columns)]
        self._matches.put(self._compared, _share_that_holds(tuple(rows.shape)), parts)
        self._compared += 1


class _DrawnText:
    """Calls of one network, each for one token more of the same texts."""

    def __init__(self, module, tokens):
        self.calls = 1
        self.columns: "list[Any]" = []
        self.reads_again = True
        self.site: Any = None
        self._module = weakref.ref(module)
        self._rows, self._length = tokens.shape
        self._began_ns = monotonic_ns()
        self._periods: "list[Any]" = []  # (tokens that the call read, ns until the next call)

    def goes_on(self, module, tokens):
        """Whether the call asks for a further token of these texts; its time counts then."""
        rows, length = tokens.shape
        grows = length in (self._length, self._length + 1)
        if module is not self._module() or rows != self._rows or not (grows or length == 1):
            return False
        now_ns = monotonic_ns()
        self._periods.append((self._length, now_ns - self._began_ns))
        self._length, self._began_ns = length, now_ns
        self.calls += 1
        self.reads_again = self.reads_again and length > 1
        if self.calls <= MIN_CALLS:
            self.columns.append(tokens[:, -1].clone())
        if self.calls == MIN_CALLS:
            self.site = frames.caller_site()
        return True

    @property
    def is_text(self):
        """Whether a text was gone on with, and not one batch after another judged."""
        lengths = [length for length, _ in self._periods]
        return not self.reads_again or max(lengths) - min(lengths) >= MIN_GROWTH

    @property
    def spent_ns(self):
        """Of all calls but the last, whose end is not seen, and what runs between them."""
        return sum(period_ns for _, period_ns in self._periods)

    def again_ns(self):
        """What tokens take that were read before, by how the time of a call grows with its length
        (least squares; the first call, which may warm up, is left out).
        """
        periods = self._periods[1:]
        lengths = [length for length, _ in periods]
        if len(set(lengths)) == 1:
            return 0
        mean_length = sum(lengths) / len(lengths)
        mean_ns = sum(period_ns for _, period_ns in periods) / len(periods)
        slope = sum((length - mean_length) * (ns - mean_ns) for length, ns in periods) / sum(
            (length - mean_length) ** 2 for length in lengths
        )
        return slope * sum(length - 1 for length in lengths)


def _tokens(args, kwargs, names):
    """The rows of whole numbers by one of these names, else the first that has none."""
    named = (kwargs[name] for name in names if name in kwargs)
    return next(filter(_are_tokens, (*named, *args)), None)


def _are_tokens(part):
    torch = session.torch
    is_plain = type(part) is torch.Tensor and (part.is_cpu or part.is_cuda)
    if not is_plain or part.layout is not torch.strided or part.dim() != 2:
        return False
    return part.dtype in (torch.int64, torch.int32) and late.has_storage(part)


def _share_that_holds(shape):
    """A function of a batch of this shape and the columns of texts: the share of the batch's rows
    that hold one of the texts.
    """

    def share(parts):
        batch, columns = parts[0].reshape(shape), parts[1:]
        size = MIN_CALLS - 1
        texts = [columns[at : at + size] for at in range(0, len(columns), size)]
        windows = _coded(batch.long().unfold(1, size, 1))
        holds = session.torch.isin(windows, session.torch.cat(list(map(_codes_of, texts))))
        return float(holds.any(1).float().mean())

    return share


def _codes_of(columns):
    """One number for the tokens of each text, without texts of few kinds of tokens."""
    texts = session.torch.stack([column.reshape(-1).long() for column in columns], 1)
    kinds = 1 + (texts.sort(1).values.diff(dim=1) != 0).sum(1)
    return _coded(texts[kinds >= MIN_KINDS])


def _coded(texts):
    return (texts * session.torch.tensor(_FACTORS, device="cpu")).sum(-1)
