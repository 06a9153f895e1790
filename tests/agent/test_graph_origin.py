"""Which node of a loss's graph was the first to hold what is not finite."""

import math
import weakref

import pytest
import torch
from torch import nn

from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import graph_origin
from gputop_agent.watchers.graphs.graph_layers import GraphLayers
from gputop_agent.watchers.graphs.graph_origin import Graph
from gputop_agent.watchers.layers.layer_slots import SlottedModules
from gputop_agent.watchers.nan import numeric_origin


@pytest.fixture(autouse=True)
def with_torch(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)


def test_a_nan_in_the_batch_is_no_relus():
    """The layer saves what went in, the ReLU only what it gave."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    x[2, 3] = float("nan")
    origin = Graph(net(x).logsumexp(1).mean()).origin()
    assert origin.unowned is not None and origin.name == "addmm"


def test_an_infinite_factor_before_it_is_not_blamed_for_a_logarithm():
    """``where`` takes the infinities out again; the logarithm of 0 comes after."""
    weight = torch.ones(4, requires_grad=True)
    factor = torch.tensor([1.0, float("inf"), 1.0, 1.0])
    kept = torch.where(torch.isinf(factor), torch.zeros(4), weight * factor)
    origin = Graph((kept.log() * 1.0).mean()).origin()
    assert origin.name == "log"


def test_an_infinite_target_is_followed_through_what_picks_some_of_it():
    """Nothing between the choice and the loss makes an infinity of what is finite."""
    sizes, target = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6)
    target[1, 2] = -float("inf")
    wrong = (sizes * 2 - target).square().sum(1)
    chosen = wrong[torch.tensor([False, True, True, False])]
    origin = Graph(sizes.mean() + 0.3 * chosen.sum() / 2).origin()
    assert origin.name == "sub"


def test_zero_times_the_logarithm_of_what_is_masked_is_no_fault_of_the_mask():
    """``p.log()`` of a choice that is left out is -inf, and ``p`` is 0."""
    logits = torch.randn(3, 5, requires_grad=True)
    kept = logits.masked_fill(torch.eye(3, 5, dtype=torch.bool), float("-inf"))
    scores = torch.stack([kept.log_softmax(1), kept.log_softmax(1)])
    origin = Graph(logits.mean() - (scores.exp() * scores).sum(2).mean()).origin()
    assert origin.name == "mul" and origin.result.isnan().any()


def test_zero_times_an_overflow_is_the_overflows():
    x = torch.full((4,), 200.0, requires_grad=True)
    origin = Graph((torch.stack([x.exp()]) * (x - 200)).mean()).origin()
    assert origin.name == "exp"


def test_a_view_of_what_is_not_finite_leads_to_what_was_viewed():
    """A linear layer flattens its input, which is all that saved the overflow of half precision."""
    layer = nn.Linear(8, 8)
    x = torch.ones(2, 3, 8, requires_grad=True)
    large = ((x.half() * 300) * (x.half() * 300)).float()
    origin = Graph(layer(large).logsumexp(-1).mean()).origin()
    assert (origin.name, origin.inputs[0][1].dtype) == ("mul", torch.float16)


def test_of_two_losses_the_one_that_is_not_finite_is_followed():
    good, out = torch.randn(4, 5, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    zeros = (out - out).norm(dim=1, keepdim=True)
    targets = torch.arange(4)
    loss = nn.functional.cross_entropy(good, targets)
    loss = loss + nn.functional.cross_entropy((out - out) / zeros, targets)
    assert Graph(loss).origin().name == "div"


def test_what_a_checkpoint_hides_is_told_by_its_operations():
    def hidden(x):
        return torch.log(x * 0) * x

    x = torch.randn(3, requires_grad=True)
    begin = torch._C._autograd._get_sequence_nr()
    out = torch.utils.checkpoint.checkpoint(hidden, x, use_reentrant=False)
    end = torch._C._autograd._get_sequence_nr()
    graph = Graph(out.sum())
    assert graph.likeliest_name(lambda number: begin <= number < end) == "log"
    assert graph.likeliest_name(lambda number: number > end + 99) is None


def test_among_the_operations_of_many_layers_none_is_picked():
    layers = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(4)))
    x = torch.full((2, 4), float("inf"))

    def hidden(y):
        return layers(y).log()

    out = torch.utils.checkpoint.checkpoint(hidden, x, use_reentrant=False)
    graph = Graph(out.mean())
    named = GraphLayers(graph, Slots(layers))
    origin = graph.origin()
    assert named.is_open(origin)
    assert named.of(origin) == (0, ["0", "3"])


class Slots:
    """What ``GraphLayers`` asks of layers."""

    def __init__(self, root):
        named = list(root.named_modules())
        self.names = [name for name, _ in named]
        self.modules = [weakref.ref(module) for _, module in named]
        self.by_id = {id(module): index for index, (_, module) in enumerate(named)}
        self.owners = {
            id(parameter): index
            for index, (_, module) in enumerate(named)
            for parameter in module.parameters(recurse=False)
        }


@pytest.mark.parametrize(("value", "bad"), [(-math.inf, {}), (math.inf, {0: ["mask"]})])
def test_a_mask_of_attention_is_no_weight_that_went_bad(value, bad):
    """CLIP's text tower has one, and was named as the origin of a NaN that its loss made."""
    layer = nn.Linear(2, 2)
    layer.register_buffer("mask", torch.zeros(4, 4))
    layer.mask[0, 1:] = value
    assert numeric_origin.bad_weights(SlottedModules([layer]))[0] == bad


@pytest.mark.parametrize(("training", "bad"), [(True, {}), (False, {1: ["running_mean"]})])
def test_statistics_that_a_forward_in_training_writes_are_no_origin(training, bad):
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(2)).train(training)
    network[0].running_mean.fill_(float("nan"))
    assert numeric_origin.bad_weights(SlottedModules([network]))[0] == bad


def test_an_infinity_in_the_batch_is_no_relus():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(4, 8)
    x[2] = float("inf")
    origin = Graph(net(x).logsumexp(1).mean()).origin()
    assert origin.unowned is not None and origin.name == "addmm"


def test_an_infinite_weight_of_a_loss_goes_into_the_product():
    out = torch.randn(4, 1, requires_grad=True)
    weight = torch.tensor([[1.0], [float("inf")], [1.0], [1.0]])
    origin = Graph((weight * (out - 1) ** 2).mean()).origin()
    assert origin.unowned is not None and origin.name == "mul"


def test_of_tables_side_by_side_the_one_whose_weights_are_not_finite_is_to_blame():
    """The others' rows are copied from finite tables; a bag's places say nothing of its values."""
    first, second = torch.nn.Embedding(10, 4), torch.nn.Embedding(10, 4)
    bag = torch.nn.EmbeddingBag(10, 4, mode="sum")
    weights = torch.ones(6)
    weights[2] = float("nan")
    some, places = torch.arange(2), torch.arange(6)
    bagged = bag(places, torch.tensor([0, 3]), per_sample_weights=weights)
    joined = torch.cat([first(some), second(some), bagged], 1)
    origin = Graph(torch.nn.Linear(12, 3)(joined).square().mean()).origin()
    assert origin.name == "embedding_bag" and bool(origin.unowned.isnan().any())


def test_a_table_that_is_not_finite_itself_is_found_beside_others():
    first, second = torch.nn.Embedding(10, 4), torch.nn.Embedding(10, 4)
    with torch.no_grad():
        second.weight[1] = float("nan")
    joined = torch.cat([first(torch.arange(3)), second(torch.arange(3))], 1)
    origin = Graph(torch.nn.Linear(8, 3)(joined).square().mean()).origin()
    assert origin.given is False and origin.name in ("accumulate_grad", "embedding")


def test_a_torch_that_hides_what_a_graph_saved_names_no_operation(monkeypatch):
    """2.9 and before: the likeliest by its name was told as the origin, and its layer with it."""
    loss = nn.Linear(8, 4)(torch.randn(4, 8)).square().mean() / torch.zeros(())
    assert (origin := Graph(loss).origin()) is not None and origin.name == "div"
    monkeypatch.setattr(graph_origin, "shows_saved", lambda: False)
    assert Graph(loss).origin() is None
    assert numeric_origin.of_graph(SlottedModules([]), loss) is None
