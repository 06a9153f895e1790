"""Events of gradients, weights and losses: what looks at them found, and where a NaN or a jump came
from.
"""

from typing import Annotated, TypedDict

from gputop_agent.contracts.host import SiteFacts
from gputop_agent.contracts.kinds import NEEDED, Amount, Line, OfClass, Real, Scalar, Step, Whole


class CheckupEvent(TypedDict, total=False):
    """A look at gradients and weights; at steps 20, 41, 61 and 100, later where it changed."""

    step: Annotated[Step, NEEDED]
    alike: Annotated[Whole, NEEDED]
    """Looks in a row that found this; sent at the third again."""
    parameter_bytes: Whole
    held_bytes: Whole
    """Gradients held at a forward after an update."""
    stale: Scalar
    """They were not zero at the backward."""
    cleared_at: Line
    """Then the only place that calls ``zero_grad()``: it is not reached, or clears a part."""
    trainable: Whole
    """Values."""
    without_gradient: Whole
    """Values."""
    without_gradient_names: list[Line]
    without_gradient_at: Line
    """The line of the user's class that uses the part of the model they are in."""
    dropped_at: Line
    """Where they had one after the backward: the only line that says ``grad = None``."""
    cut_at: Line
    """The only line of that class that takes a value out of the graph, as ``detach()`` does."""
    gathered_at: Line
    """With several ranks the only place that calls ``all_gather``, whose result has no graph."""
    held_back_at: Line
    """With several ranks the only place that decides when gradients are reduced (``no_sync``,
    ``set_requires_gradient_sync``); until they are, FSDP2 keeps them to itself.
    """
    new_leaf_at: Line
    reentrant_at: Line
    """Where some have none: the only line of the user's files with ``tensor(`` and
    ``requires_grad=True``, and the only one with ``use_reentrant=True`` where torch has warned that
    no input of such a checkpoint needs a gradient.
    """
    lr_max: Real
    """Over the groups."""
    rate_set_at: Line
    """Where that is as good as 0, or ranks may have others: the only place in the user's files that
    sets ``group["lr"]``.
    """
    rate_steps: Amount
    """Calls of its schedule's ``step`` an update, where they are 1.5 or more."""
    rate_stepped_at: list[Line]
    """The lines that do it, those first that call it themselves."""
    rate_rarely: Line
    rate_stepped: Whole
    rate_length: Whole
    """A schedule that is made to be stepped with each update (``OneCycleLR``), and is stepped once
    in 20 or more: its class, how often it was, and the steps that it is made for (0: not told).
    """
    misspelt: Line
    misspelt_to: bool
    misspelt_values: Whole
    misspelt_names: list[Line]
    misspelt_at: Line
    """An attribute that parameters were given and that is nearly called ``requires_grad``, what it
    was set to, of how many values, and the line.
    """
    row_calls: Whole
    row_calls_ms: Amount
    row_calls_at: Line
    row_calls_convolve: bool
    """Calls of one module in a step soon after the look before, eight or more, each with another
    row of the same tensors; how long they took, the line of the loop that makes them, and whether
    the module convolves.
    """
    drawn_steps: Whole
    drawn_tokens: Whole
    drawn_ms: list[Amount]
    read_again_ms: list[Real]
    drawn_at: Line
    """Texts that a network was asked for token by token without a cache, in so many steps after the
    look before: tokens of each, in the mean; how long each took; how much of that went into tokens
    that the call before had read, by how the time of a call grows with its length; and the line
    that asks.
    """
    resting: Whole
    """Values with gradients in groups whose learning rate is 0, while others have one."""
    resting_names: list[Line]
    shapes_at: Line
    """The line of the operation that ``normalised_twice`` or ``errors_shape`` tell of."""
    frozen_group: Whole
    frozen_group_names: list[Line]
    frozen_group_at: Line
    """Values in groups of which none wants a gradient, while others do; and the only call of
    ``Embedding.from_pretrained`` that leaves ``freeze=True`` unsaid.
    """
    frozen_whole: bool
    """No group has one that does; ``frozen_group_at`` is then where an adapter is exchanged."""
    gradients_looked_at: Whole
    gradients_not_zero: Whole
    """Values of up to eight gradients just before an update."""
    zero_gradient: Whole
    zero_gradient_names: list[Line]
    zero_gradient_looks: Whole
    """Values of parameters whose whole gradient was zero at so many looks in a row."""
    zero_gradient_at: Line
    """As ``without_gradient_at``."""
    zero_gradient_by: Line
    zero_gradient_made_at: Line
    """``round``: what all of them get their gradient through, whose own is zero everywhere; and the
    only line of the script that calls it.
    """
    zero_weights: list[Line]
    zero_weights_at: Line
    """Matrices among them that are all 0, on the CPU, and the only line that makes such."""
    stray: Whole
    stray_names: list[Line]
    stray_looks: Whole
    """Values that have gradients, are in no optimizer that has stepped, and did not change for so
    many looks.
    """
    stray_at: Line
    """As ``without_gradient_at``."""
    stray_optimizer_at: Line
    """Where the optimizer is made that has the rest of their model."""
    stray_thawed_at: Line
    """The only ``requires_grad_(True)`` of the script, where an optimizer has the rest."""
    stray_held_in: Line
    """``Critics.heads, a list``: what of a module's has the modules of most of them in a plain
    collection.
    """
    stray_held_at: Line
    """Where that attribute is assigned."""
    stray_outside: Whole
    """Those of them that are in no module."""
    stray_made_at: Line
    """The only line of the script that makes a parameter, where some are in no module."""
    stray_apart: Line
    """The class of a module beside the model, where they are all that it has."""
    stray_waiting: Whole
    """Those of them that an optimizer has which has not stepped."""
    cleared_backwards: Whole
    step_backwards: Whole
    cleared_looks: Whole
    """Backwards of the step whose gradients were cleared before its update, of so many, and looks
    in a row that found some.
    """
    cleared_at: Line
    """The only ``zero_grad()`` in the loop around the backward."""
    eval_mode: Line
    """Class of a module that is updated in eval mode, and was updated in training mode before."""
    eval_mode_parts: list[Line]
    """Classes in it that do something else in eval mode."""
    eval_mode_after: Step
    """The last look that saw it in training mode; -1: none has."""
    eval_mode_at: Line
    """The only ``eval()`` of the script; of a model that never was in training mode, also the only
    ``from_pretrained()``.
    """
    eval_mode_set_at: Line
    """What its class calls in a train() of its own."""
    eval_mode_left_at: Line
    """The only way out of the function that calls ``eval()`` there before it calls ``train()``."""
    eval_mode_looks: Whole
    """So many looks in a row."""
    evaluated_in_training: Line
    """Class of a network that is trained, and is in training mode where it is called without
    gradients by an evaluation; none was seen in eval mode.
    """
    evaluated_in_training_parts: list[Line]
    """Classes in it that do something else in eval mode."""
    evaluated_in_training_steps: Whole
    """With such an evaluation."""
    evaluated_in_training_at: Line
    """The line that calls it, the second time."""
    evaluated_copy: bool
    """Such a network is a copy of the trained one, which was in eval mode meanwhile."""
    seed_calls: Whole
    """Calls of ``torch.manual_seed`` with the seed from which the step draws its numbers."""
    seeded_since: Step
    """The step of the first of them."""
    seeded_at: Line
    """The line of the last one."""
    backward_at: Line
    update_at: Line
    """Lines of the step's first backward, and of its update."""
    fresh_looks: Whole
    """Looks in a row that met an optimizer with state at its first update."""
    fresh_at: Line
    """The line that made the last of these optimizers."""
    graph_again: list[Real]
    """Of each further backward of the step, the part of its graph that one before went through."""
    normalised_twice: Line
    """``softmax`` or ``sigmoid``: the loss applies it to what it has been applied to."""
    predictions_shape: list[Whole]
    errors_shape: list[Whole]
    """Of a loss that compares each of ``n`` predictions with each of ``n`` targets."""
    weighed: bool
    """It multiplies each of ``n`` errors by each of ``n`` weights instead."""
    loss_at: Line
    """Where that loss is assigned."""
    class_looks: Whole
    """Looks so far at the classes that cross_entropy was given, one for each row of scores."""
    one_class_looks: Whole
    """Of them, those whose batch held one class, nine of ten targets at least."""
    one_class_in_turn: list[Whole]
    """That class, each time that it was another than the last."""
    clips: Whole
    """Calls of ``clip_grad_norm_`` with a limit, so far."""
    clips_late: Whole
    clips_late_at: Line
    """Of them, those that came after the only optimizer's update, with no backward in between, and
    the line of the first.
    """
    clips_scaled: Whole
    """Calls of ``clip_grad_norm_`` with gradients that a GradScaler had scaled, so far."""
    weights_rms: Real
    """Largest root mean square of some weights of up to eight matrices."""
    table: Line
    """Parameter of an embedding that is much of the model."""
    table_rows: Whole
    table_values: Whole
    table_rows_looked_at: Whole
    table_rows_met: Whole
    """Of those looked at, rows with a gradient."""
    graded: Whole
    """Values of all parameters that have gradients."""
    bf16_pushed: Whole
    bf16_stuck: Whole
    """Of sampled values with a gradient, those that an update did not change."""
    scheduler_first: Scalar


class UnclearedEvent(TypedDict, total=False):
    """Of one of several optimizers: all backwards between two updates began with gradients of
    before; once, at the third look in a row.
    """

    step: Annotated[Step, NEEDED]
    looks: Annotated[Whole, NEEDED]
    optimizer: Annotated[Line, NEEDED]
    """Its class."""
    backwards: Annotated[Whole, NEEDED]
    """Between the two updates."""
    backward_at: Line
    """The line of the last of them."""


class UndetachedEvent(TypedDict, total=False):
    """A backward that went through another optimizer's network, whose gradients were cleared before
    that one's update; at the third look in a row and the sixth.
    """

    step: Annotated[Step, NEEDED]
    looks: Annotated[Whole, NEEDED]
    optimizer: Annotated[Line, NEEDED]
    """The other one's class."""
    values: Annotated[Whole, NEEDED]
    """Of its parameters that the backward reached."""
    names: list[Line]
    took_ms: list[Amount]
    """Of the part of the backward that leads to them alone, at each of the looks; empty where it
    was not measured, as on a GPU.
    """
    backward_at: Line
    made_at: Line
    """The line that gives the other network's result to the loss, or that calls it."""
    is_needed_too: bool
    """The backward also goes through that network to what it is meant for."""


class RandomState(TypedDict, total=False):
    """Of torch's generator."""

    seed: Scalar
    state: Scalar
    at: Line
    """The only line of the script that seeds all, as ``torch.manual_seed`` does."""
    drops: bool
    """The model has a dropout that drops: its rate is above 0."""


class Replica(TypedDict, total=False):
    """DDP: after updates 10, 11, 50, 51 ..."""

    update: Annotated[Whole, NEEDED]
    group: Scalar
    """Ranks that replicate."""
    parameters: Annotated[Scalar, NEEDED]
    """Checksum of those in ``names``, together."""
    names: list[Line]
    each: list[Whole]
    """Checksum of each of them."""
    edited_at: dict[str, Line]
    """By name, the only line of the script that writes into it in place."""
    random: RandomState
    outside: Scalar
    """Checksum of what the optimizers update and no DDP module has."""
    outside_values: Whole
    outside_names: list[Line]
    """The first of them."""
    exchange: bool
    """Ranks have given each other tensors, as tensor parallelism does."""
    by_hand: bool
    """There is no DDP: the ranks sum the gradients of all parameters themselves."""
    made_at: Line
    """The only line of the script that makes the model, of replicas by hand."""
    summed_in_part_at: Line
    """There is no DDP, and the ranks sum fewer values themselves than have gradients: a line that
    does it, empty where it was not seen.
    """
    unsynced_at: Line
    """The last backward before the update ran inside of ``no_sync()``: the only line that calls it;
    empty where there are several.
    """
    joins: bool
    """DDP is under ``Join``: ranks need not make equally many updates."""


class NonFinite(TypedDict, total=False):
    """A loss that is NaN or infinite; the first few."""

    step: Annotated[Step, NEEDED]
    value: Scalar
    unread: Whole


class BatchOrigin(TypedDict, total=False):
    """The batch of a step."""

    number: Whole
    """In the epoch, from 1."""
    finite: bool
    """Only where the batch is held: ``run --watch-numerics``."""
    rows: list[Whole]
    """Places in the batch whose values are not finite; the first few."""
    samples: list[Whole]
    """Indexes in the dataset, of these places or of the whole batch; the first few."""
    files: list[Line]


class NanOrigin(OfClass, total=False):
    """Where values stopped being finite; the first few times."""

    step: Annotated[Step, NEEDED]
    direction: Annotated[Line, NEEDED]
    """``forward``, ``backward``, ``input``, ``weights`` (not finite before the forward),
    ``reduced`` (the rank's own gradients were finite, their sum over the ranks was not) or ``gone``
    (no longer to be told).
    """
    how: Line
    """``hooks`` in the layers, ``graph`` of the loss, ``weights`` or ``gradients`` afterwards."""
    watched: bool
    """Whether each step was."""
    layer: Line
    """``loss`` where it lies after the model."""
    between: list[Line]
    """The layers with parameters before and after it, where the layer itself is not sure."""
    operation: Line
    value: Line
    dtype: Line
    limit: Real
    """The largest finite value of that type."""
    largest_input: Real
    """Absolute maximum of what the operation was given."""
    weight: Line
    written_at: Line
    """The only line of the user's files that writes a NaN, where it came in or into a weight."""
    bad_layers: Whole
    """Layers whose weights, or gradients, are not finite."""
    layers: Whole
    """Of so many."""
    course_steps: list[Step]
    """Sampled steps before."""
    course_largest: list[Real]
    """Absolute maximum of what the layer gave in them."""
    batch: BatchOrigin


class NanPlace(SiteFacts, total=False):
    """The line of the operation at which values stopped being finite, as the next step showed."""

    step: Annotated[Step, NEEDED]
    """In which they did."""
    operation: Line
    suspect: Line
    suspect_at: Line
    """Of values that it was given: the likeliest to have made them, read from the source."""
    held_in: Line
    """The attribute of the data set that was seen to hold such values, as ``Prices.returns``."""


class NoGradientEvent(TypedDict, total=False):
    """One of several optimizers updates, and none of its parameters has a gradient; once, at the
    third look in a row.
    """

    step: Annotated[Step, NEEDED]
    looks: Annotated[Whole, NEEDED]
    optimizer: Annotated[Line, NEEDED]
    """Its class."""
    values: Annotated[Whole, NEEDED]
    names: list[Line]
    at: Line
    """The line of the step's first backward."""


class SpikeOrigin(TypedDict, total=False):
    """A loss jumped: the layer whose relative update had grown most; with ``run
    --watch-numerics``.
    """

    step: Annotated[Step, NEEDED]
    loss: Real
    layer: Annotated[Line, NEEDED]
    relative_update: Real
    """Norm of the change of its weights by that of its weights, sampled values."""
    usual_update: Real
    update_step: Step
