"""A graph network, full batch, sparse adjacency; LBFGS with a closure, or Adam."""

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(7)
cost = Cost()
nodes = 1500
edges = torch.randint(0, nodes, (2, 9000))
features, labels = torch.randn(nodes, 32), torch.randint(0, 5, (nodes,))


def normalised():
    return torch.sparse_coo_tensor(edges, torch.ones(9000) / 6, (nodes, nodes)).coalesce()


def by_hand():
    degree = {}
    for a in edges[0].tolist():  # at: adjacency
        degree[a] = degree.get(a, 0) + 1  # at: adjacency
    values = [1 / degree[a] for a in edges[0].tolist()]  # at: adjacency
    return torch.sparse_coo_tensor(
        edges, torch.tensor(values), (nodes, nodes)
    ).coalesce()  # at: adjacency


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(32, 64), nn.Linear(64, 5)

    def forward(self, adjacency):
        hidden = F.relu(torch.sparse.mm(adjacency, self.one(features)))
        return self.two(torch.sparse.mm(adjacency, hidden))


net, adjacency = Graph(), normalised()
if on("closure_python", "clean_closure_python"):
    optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=6)
else:
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)


def closure():
    optimizer.zero_grad()
    loss = F.cross_entropy(net(adjacency), labels)
    loss.backward()
    if on("closure_python"):
        with cost:
            grads = [one.grad.flatten()[:900] for one in net.parameters()]
            values = [g for grad in grads for g in grad]  # at: closure_python
            norm = sum(float(g) ** 2 for g in values)  # at: closure_python
            print(norm**0.5)
    return loss


steps = STEPS or (60 if on("closure_python", "clean_closure_python") else 250)
for step in range(steps):
    if on("adjacency"):
        with cost:
            adjacency = by_hand()  # at: adjacency
    elif on("clean_adjacency") and step == 100:
        adjacency = by_hand()
    if on("closure_python", "clean_closure_python"):
        optimizer.step(closure)
    else:
        closure()
        optimizer.step()
cost.print(steps)
