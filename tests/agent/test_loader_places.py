"""Where a DataLoader is built is known by its line, through subclasses, helpers and packages."""

import sys
import types

import pytest

torch = pytest.importorskip("torch")
from torch.utils.data import DataLoader, Dataset  # noqa: E402

from gputop_agent.runtime import frames  # noqa: E402
from gputop_agent.watchers.loaders import loader_places  # noqa: E402


class Rows(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.zeros(2)


@pytest.fixture
def noting(monkeypatch):
    monkeypatch.setattr(DataLoader, "__init__", loader_places.noting(DataLoader.__init__))


def package(monkeypatch, name, source):
    """A module whose code lies in a folder of installed packages."""
    module = types.ModuleType(name)
    code = compile(source, f"/opt/lib/site-packages/{name}/data.py", "exec")
    exec(code, {"DataLoader": DataLoader, "__name__": name}, module.__dict__)
    return module


def line(offset):
    return sys._getframe(1).f_lineno + offset


def here(number):
    return f"{frames.short_name(__file__)}:{number}"


class Mine(DataLoader):
    def __init__(self, data):
        super().__init__(data, batch_size=2)


def test_the_line_of_the_call(noting):
    loader, at = DataLoader(Rows()), line(0)
    assert loader_places.of(loader) == here(at)


def test_a_subclass_is_built_where_it_is_called(noting):
    loader, at = Mine(Rows()), line(0)
    assert loader_places.of(loader) == here(at)


def test_a_helper_of_a_package_is_named_by_the_users_line(noting, monkeypatch):
    timm = package(monkeypatch, "timm", "def create(data):\n    return DataLoader(data)")
    loader, at = timm.create(Rows()), line(0)
    assert loader_places.of(loader) == here(at)


def test_a_trainer_that_builds_a_loader_has_no_line_of_the_users(noting, monkeypatch):
    trainer = package(monkeypatch, "transformers", "def train(data):\n    return DataLoader(data)")
    assert loader_places.of(trainer.train(Rows())) is None


def test_a_loader_made_anew_keeps_the_line_of_the_one_with_the_same_data(noting, monkeypatch):
    lightning = package(
        monkeypatch, "lightning", "def process(loader):\n    return DataLoader(loader.dataset)"
    )
    first, at = DataLoader(Rows()), line(0)
    assert loader_places.of(lightning.process(first)) == here(at)


def test_what_is_wrapped_around_a_constructor_is_passed(noting, monkeypatch):
    wrapper = "    def wrapper(obj, *args, **kwargs):\n        init(obj, *args, **kwargs)\n"
    wrapped = package(monkeypatch, "lightning", f"def around(init):\n{wrapper}    return wrapper")
    monkeypatch.setattr(DataLoader, "__init__", wrapped.around(DataLoader.__init__))
    loader, at = DataLoader(Rows()), line(0)
    assert loader_places.of(loader) == here(at)


def test_the_constructor_looks_as_before(noting):
    import inspect

    assert "num_workers" in inspect.signature(DataLoader.__init__).parameters
    with pytest.raises(TypeError, match="nonsense"):
        DataLoader(Rows(), nonsense=1)
