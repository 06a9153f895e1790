"""A place in the user's code that a phase's time goes to."""

from __future__ import annotations

from dataclasses import dataclass

from gputop_analysis.findings.input.loader_looks import surely

ENOUGH = 5
"""Fewer samples than this name no place."""
MOSTLY = 0.5
"""Of the samples a place must hold more, at its interval's lower end, to be named."""
IN_FUNCTION = "in the function at"


@dataclass(frozen=True, slots=True)
class Site:
    """The innermost line that surely holds most of a phase's samples, with all that it calls."""

    site: str | None
    """``train.py:118 get_batch``; None where no line holds most of them."""
    share: float
    """Of the phase's samples, 0 to 1; of the most frequent line where none is sure."""
    samples: int
    torch_share: float = 0.0
    """The phase's samples inside torch: a loss function or zero_grad, work and no overhead."""
    detail: str = ""
    """Library line that it was waiting in most often, if it was in one."""
    caller: str = ""
    """``train.py:90 run``, the line that mostly calls the function of the site."""
    trainers_share: float = 0.0
    """Of the phase's samples, those inside a trainer's own code."""
    spread: str = ""
    """The most frequent lines, where none holds most of the samples."""
    beside: str = ""
    """The second of two lines that hold most samples together."""
    where: str = "at"
    """``in the loop at`` its first line, or ``in the function at`` its most frequent line, where no
    line in it holds most of the samples.
    """

    @property
    def is_function(self) -> bool:
        """Whether no line in it holds most of the samples."""
        return self.where == IN_FUNCTION

    @property
    def is_of_one_function(self) -> bool:
        """Whether both lines that hold most samples are of one function that is called at one."""
        function = (self.site or "").partition(" ")[2]
        return bool(self.caller and function) and self.beside.endswith(f" {function}")

    @property
    def least_share(self) -> float:
        """The lower end of the share's interval."""
        return surely(round(self.share * self.samples), self.samples)

    @property
    def most_share(self) -> float:
        """The upper end of the share's interval."""
        return 1 - surely(round((1 - self.share) * self.samples), self.samples)

    @property
    def words(self) -> str:
        """``most often at train.py:118 get_batch, called at train.py:90 run (80 % of 40 stack
        samples)``.
        """
        inside = f", inside {self.detail}" if self.detail else ""
        called = f", called at {self.caller}" if self.caller else ""
        if self.site is None:
            return f"{self.spread} (of {self.samples} stack samples)"
        return (
            f"most often {self.where} {self.site}{inside}{called} "
            f"({self.share * 100:.0f} %{self.beside} of {self.samples} stack samples)"
        )


def named(site: Site | None, words: str = "{}") -> str:
    """Words with the place in them; empty where none is sure."""
    return words.format(site.site) if site is not None and site.site else ""
