"""A signed distance learnt by a small network, in functions and closures: points marched one by
one, a tree built anew, a mesh written each step, an average by way of bytes, reports that hold on
to what they report, a rate that any plateau lowers, a pool that waits for itself.
"""

import collections
import io
import itertools
from multiprocessing.pool import ThreadPool

import eager  # noqa: F401
import torch
from shape import STEPS, Cost, on
from torch import nn

steps, cost = STEPS or 600, Cost()


def distance(points):
    """How far from a torus."""
    ring = points[:, :2].norm(dim=1) - 0.6  # at: points_marched
    return torch.stack([ring, points[:, 2]], 1).norm(dim=1) - 0.25  # at: points_marched


def marched(start, toward):
    """Where a ray meets the surface, by halves."""
    near, far = 0.0, 1.0
    for _ in range(7):  # at: points_marched
        middle = (near + far) / 2  # at: points_marched
        point = (start + (toward - start) * middle)[None]  # at: points_marched
        if distance(point).item() > 0:  # at: points_marched
            near = middle
        else:
            far = middle
    return start + (toward - start) * near  # at: points_marched


def sampler(count):
    """Points in the cube, and those of them that lie near the surface."""
    while True:
        points = torch.rand(count, 3) * 2 - 1
        if on("points_marched"):
            with cost:
                inside = torch.tensor([0.6, 0.0, 0.0])
                hits = [marched(point, inside) for point in points[:14]]  # at: points_marched
                points[:14] = torch.stack(hits)
        yield points, distance(points)


def network(width=192):
    return nn.Sequential(
        nn.Linear(3, width),
        nn.Softplus(20),
        nn.Linear(width, width),
        nn.Softplus(20),
        nn.Linear(width, width),
        nn.Softplus(20),
        nn.Linear(width, 1),
    )


def octree(low, high, depth, parent=None):
    """Cells that know their parent and their children."""
    node = {"low": low, "high": high, "parent": parent}  # at: octree_rebuilt
    half = [(a + b) / 2 for a, b in zip(low, high, strict=True)]  # at: octree_rebuilt
    node["children"] = [  # at: octree_rebuilt
        octree(low, half, depth - 1, node)  # at: octree_rebuilt
        for _ in range(8 if depth else 0)  # at: octree_rebuilt
    ]
    return node


def keep_average(model):
    """A function that moves an average after the model, and the average."""
    kept = network()
    kept.load_state_dict(model.state_dict())

    def through_bytes():
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)  # at: average_roundtrip
        for _ in range(6):  # at: average_roundtrip
            buffer.seek(0)
            fresh = torch.load(buffer)  # at: average_roundtrip
        for name, value in kept.state_dict().items():
            value.lerp_(fresh[name], 0.01)  # at: average_roundtrip

    @torch.no_grad()
    def in_place():
        torch._foreach_lerp_(list(kept.parameters()), list(model.parameters()), 0.01)

    return through_bytes if on("average_roundtrip") else in_place


def writer(name, points):
    """A function that writes the points and what the model says of them."""

    def write(model):
        with cost, open(name, "w") as file, torch.no_grad():
            heights = model(points)[:, 0].tolist()
            for (x, y, z), h in zip(points.tolist(), heights, strict=True):  # at: mesh_written
                file.write(f"v {x:.5f} {y:.5f} {z:.5f} {h:.5f}\n")  # at: mesh_written

    return write


def reporter():
    """A list of what is to be reported, and a function that adds to it."""
    reports = collections.deque(maxlen=None if on("reports_kept") else 50)

    def add(step, errors):
        if on("reports_kept"):
            reports.append(lambda: (step, errors.max().item()))  # at: reports_kept
        elif on("clean_reports_kept"):
            worst = errors.detach().max()
            reports.append(lambda: (step, worst.item()))

    return reports, add


def ask_pool():
    """The result of a task that asks the same pool."""
    pool = ThreadPool(1)

    def inner(side):
        return sum(pool.map(float, [side, 2 * side]))  # at: pool_waits

    return pool.apply(inner, (1,))  # at: pool_waits


def train():
    torch.set_num_threads(1)
    torch.manual_seed(152)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    patience = 0 if on("plateau_each_step") else 25
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(  # at: plateau_each_step
        optimizer, factor=0.3, patience=patience, min_lr=0, eps=0
    )
    follow = keep_average(model)
    write = writer("surface.obj", torch.rand(800, 3) * 2 - 1)
    reports, report = reporter()
    for step, (points, wanted) in enumerate(  # at: points_marched
        itertools.islice(sampler(768), steps)  # at: points_marched
    ):
        errors = (model(points)[:, 0] - wanted).abs()  # at: reports_kept
        loss = errors.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow()  # at: average_roundtrip
        if step % 4 == 0:
            report(step, errors)  # at: reports_kept
        if on("plateau_each_step", "clean_plateau_each_step"):
            schedule.step(loss.item())  # at: plateau_each_step
        if on("octree_rebuilt"):
            with cost:
                for side in (1.0, 2.0):
                    octree([-1.0] * 3, [side] * 3, 3)  # at: octree_rebuilt
        if on("mesh_written") or (on("clean_mesh_written") and step % 150 == 149):
            write(model)  # at: mesh_written
        if on("pool_waits") and step == 150:
            ask_pool()  # at: pool_waits
        if step % 100 == 0:
            print(step, loss.item(), len(reports), flush=True)


train()
cost.print(steps)
