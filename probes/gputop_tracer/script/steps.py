"""A script's phase and step, told from outside: by module calls, backwards and updates."""

# torch is patched from outside here, in places that its type hints do not know.
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false, reportCallIssue=false
from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Set

import torch
from torch import nn
from torch.optim import optimizer as optim

from gputop_tracer.model import heads
from gputop_tracer.operators.values import leaves
from gputop_tracer.tracking.tracker import Tracker

from .evaluations import Evaluations
from .fake import Fakes, on_gpu

_PATIENCE = 6
"""Steps of the first optimizer after which one that has not stepped yet is taken to be unused."""
SECOND_STEP_S = 60.0
"""At least so long is waited for the second step after the first."""


class Steps:
    """Follows the training loop of a script and calls ``finished`` after its second whole step."""

    def __init__(self, tracker: Tracker, fakes: Fakes, finished: Callable[[], Any]) -> None:
        self.tracker = tracker
        self.fakes = fakes
        self.finished = finished
        self.done = 0
        """Whole steps so far; a step ends when each optimizer in use has stepped."""
        self.backwards = 0
        self.notes: List[str] = []
        self.guesses: List[str] = []
        self.models: List[nn.Module] = []
        self.deadline = float("inf")
        self._began = 0.0
        self._attached: Set[int] = set()
        self._evaluations = Evaluations()
        self._depth = 0
        self._optimizers: List[Any] = []
        self._stepped: Dict[int, int] = {}
        self._leader_steps = 0
        self._in_step = 0
        self._in_backward = 0

    def watch(self) -> None:
        """Hook into modules, backwards and optimizers."""
        self._watch_calls()
        self._watch_backward()
        self._watch_optimizers()
        self._watch_clipping()

    def enough(self) -> bool:
        """Whether this is an answer: a whole step, or passes of a script that updates by hand."""
        if not self.done and self.backwards > 1:
            self.note("The script steps no optimizer of torch: all that it ran was traced.")
        return self.done > 0 or self.backwards > 1

    def note(self, sentence: str, guess: str = "") -> None:
        """Say what was done; ``guess`` names in few words what is not the script's own."""
        if sentence not in self.notes:
            self.notes.append(sentence)
        if guess and guess not in self.guesses:
            self.guesses.append(guess)

    def _watch_calls(self) -> None:
        original = nn.Module.__call__

        def call(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            if self._depth or self._in_backward:
                return original(module, *arguments, **options)
            arguments, options = self._enter(module, arguments, options)
            self._depth += 1
            try:
                return self._evaluations.call(original, module, arguments, options)
            finally:
                self._depth -= 1

        nn.Module.__call__ = call  # type: ignore[method-assign,assignment]

    def _enter(self, module: nn.Module, arguments: Any, options: Any) -> Any:
        """An outermost module is called: the forward of a model, or a loss."""
        parameters = [parameter for parameter in module.parameters() if parameter is not None]
        if not parameters or _is_transformed():
            return arguments, options
        self._began = self._began or time.monotonic()
        if time.monotonic() > self.deadline and self.done:
            sentence = (
                "No second step came in time, as where an evaluation follows the first: "
                "that alone was traced."
            )
            self.note(sentence, guess="the second step, which did not come in time")
            self.finished()
        self._attach(module, parameters)
        if self.tracker.phase not in ("forward", "loss"):
            self.tracker.mark("forward", self.done)
        return self._inputs(arguments), self._inputs(options)

    def _attach(self, module: nn.Module, parameters: List[Any]) -> None:
        if all(id(parameter) in self._attached for parameter in parameters):
            return
        if not any(on_gpu(parameter) for parameter in _local(parameters)):
            self._promote(module)
        prefix = type(module).__name__ + "." if self.models else ""
        self.tracker.attach(module, heads.of_model(module), prefix)
        self._attached.update(map(id, parameters))
        self.models.append(module)

    def _promote(self, module: nn.Module) -> None:
        """A model that the script trains on the host is estimated as if it were on a GPU."""
        if not self.fakes.named_gpu:
            sentence = "The script names no GPU: its model and batches were taken to be on one."
            self.note(sentence, guess="that it runs on a GPU, as it names none")
        module._apply(self.fakes.to_gpu)

    def _inputs(self, tree: Any) -> Any:
        """Real tensors that enter a model are on the GPU from here on."""

        def fake(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor) and not on_gpu(leaf):
                return self.fakes.to_gpu(leaf)
            return leaf

        def moved(argument: Any) -> Any:
            if isinstance(argument, nn.utils.rnn.PackedSequence):  # its lengths stay on the host
                return argument._replace(data=fake(argument.data))
            return torch.utils._pytree.tree_map(fake, argument)

        if not leaves(tree):
            return tree
        if isinstance(tree, dict):
            return {name: moved(leaf_) for name, leaf_ in tree.items()}
        return tuple(map(moved, tree))

    def _watch_backward(self) -> None:
        backward = torch.autograd.backward

        def watched(*arguments: Any, **options: Any) -> Any:
            if self._in_backward:
                return backward(*arguments, **options)
            self.tracker.mark("backward", self.done)
            self._in_backward += 1
            self.backwards += 1
            try:
                return backward(*arguments, **options)
            finally:
                self._in_backward -= 1
                if self._in_step:
                    self.tracker.mark("optimizer", self.done)

        def of_tensor(
            tensor: Any,
            gradient: Any = None,
            retain_graph: Any = None,
            create_graph: bool = False,
            inputs: Any = None,
        ) -> Any:
            return watched(tensor, gradient, retain_graph, create_graph, inputs=inputs)

        torch.autograd.backward = watched
        torch.Tensor.backward = of_tensor  # type: ignore[method-assign,assignment]

    def _watch_optimizers(self) -> None:
        original, zero_grad = optim.Optimizer.__init__, optim.Optimizer.zero_grad

        def init(optimizer: Any, *arguments: Any, **options: Any) -> None:
            original(optimizer, *arguments, **options)
            self._optimizers.append(optimizer)

        def zero(optimizer: Any, *arguments: Any, **options: Any) -> None:
            if self.tracker.phase in ("optimizer", "backward"):
                self.tracker.mark("zero_grad", self.done)
            zero_grad(optimizer, *arguments, **options)

        optim.Optimizer.__init__ = init  # type: ignore[method-assign]
        optim.Optimizer.zero_grad = zero  # type: ignore[method-assign]
        optim.register_optimizer_step_pre_hook(self._before_step)
        optim.register_optimizer_step_post_hook(self._after_step)

    def _watch_clipping(self) -> None:
        for name in ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_"):
            original = getattr(nn.utils, name, None)
            if original is not None:
                setattr(nn.utils, name, self._clipping(original))
                if hasattr(nn.utils.clip_grad, name):
                    setattr(nn.utils.clip_grad, name, getattr(nn.utils, name))

    def _clipping(self, original: Any) -> Any:
        def clip(*arguments: Any, **options: Any) -> Any:
            self.tracker.mark("clip", self.done)
            try:
                return original(*arguments, **options)
            finally:
                if self._in_step:
                    self.tracker.mark("optimizer", self.done)

        return clip

    def _before_step(self, _optimizer: Any, _arguments: Any, _options: Any) -> None:
        self._in_step += 1
        self.tracker.mark("optimizer", self.done)

    def _after_step(self, optimizer: Any, _arguments: Any, _options: Any) -> None:
        self._in_step -= 1
        for state in optimizer.state.values():
            if isinstance(state, dict):
                self.tracker.tag_all(state.values(), "optimizer")
        self._count(optimizer)

    def _count(self, optimizer: Any) -> None:
        """A step is whole when each of the script's optimizers has stepped or seems unused."""
        self._stepped[id(optimizer)] = self._stepped.get(id(optimizer), 0) + 1
        if len(self._stepped) < len(self._optimizers) and max(self._stepped.values()) < _PATIENCE:
            return
        if len(self._stepped) < len(self._optimizers):
            self._optimizers = [
                optimizer_ for optimizer_ in self._optimizers if id(optimizer_) in self._stepped
            ]
        self._stepped.clear()
        self.done += 1
        if self.done >= 2:
            self.finished()
        now_s = time.monotonic()
        self.deadline = min(self.deadline, now_s + max(SECOND_STEP_S, 3 * (now_s - self._began)))


def _is_transformed() -> bool:
    """Whether a transform of ``torch.func`` is at work, in which parameters are not themselves."""
    peek = getattr(getattr(torch._C, "_functorch", None), "peek_interpreter_stack", None)
    return peek is not None and peek() is not None


def _local(parameters: List[Any]) -> List[Any]:
    return [getattr(parameter, "_local_tensor", parameter) for parameter in parameters]
