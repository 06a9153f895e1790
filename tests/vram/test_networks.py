"""Networks of timm and torchvision: their names, and their traces where the libraries are."""

import pytest

from gputop.cli.errors import ENVIRONMENT, CliError
from gputop.cli.fit import estimate as command
from gputop.models import configuration, resolved
from gputop_analysis.catalog.other_kinds import TIMM, timm_name
from gputop_analysis.vram.options import setup_of

THEIRS = {
    "tf_efficientnet_b0": "tf_efficientnet_b0",
    "deit3_huge_patch14_224": "deit3_huge_patch14_224",
    "timm/vit_small_patch16_224.augreg_in21k": "vit_small_patch16_224.augreg_in21k",
    "hf-hub:timm/eva02_base_patch14_224.mim_in22k": "eva02_base_patch14_224.mim_in22k",
    "vgg16": "vgg16",
    "maxvit_t": "maxvit_t",
    "timm/test_vit.r160_in1k": "test_vit.r160_in1k",
}


@pytest.mark.parametrize("name", THEIRS)
def test_names_are_left_to_timm(name: str):
    shape, _ = resolved(name, traces=True)
    assert (shape.name, shape.family, shape.hidden) == (THEIRS[name], TIMM, 0)
    assert configuration(shape) == {TIMM: THEIRS[name]}
    assert setup_of(shape, {}).image_size == 0
    with pytest.raises(LookupError, match="a trace does: gputop estimate --model"):
        resolved(name)


@pytest.mark.parametrize("name", ["yolov8n", "ultralytics/yolo11n", "llama-3-8b", "some_net", "t5"])
def test_others_are_not(name: str):
    assert timm_name(name) == ""


def test_a_name_with_a_packaged_configuration_needs_no_timm():
    shape, _ = resolved("timm/resnet50.a1_in1k", traces=True)
    assert (shape.name, shape.family) == ("microsoft/resnet-50", "resnet")


def test_a_library_that_is_missing_is_named(monkeypatch):
    from gputop import tracing

    def missing(*_arguments, **_options):
        raise ImportError("python has no timm, which builds this model: pip install timm there")

    monkeypatch.setattr(tracing, "run", missing)
    with pytest.raises(CliError, match="pip install timm there") as error:
        command.execute(["--model", "tf_efficientnet_b0"])
    assert error.value.exit_code == ENVIRONMENT


def test_what_a_missing_library_is_said_to_be_for():
    from gputop_tracer.main import _missing

    for name in ("diffusers", "timm"):
        said = _missing(ImportError(f"No module named '{name}'", name=name))
        assert f"pip install {name} there" in said and "gputop estimate train.py" in said


@pytest.mark.parametrize(
    ("name", "millions", "pixels", "shape"),
    [
        ("mobilenetv3_small_100", 2.54, 0, (3, 224, 224)),
        ("resnet10t.c3_in1k", 5.44, 160, (3, 160, 160)),
        ("vit_tiny_patch16_224", 5.72, 384, (3, 384, 384)),
    ],
)
def test_a_network_of_timm(name: str, millions: float, pixels: int, shape):
    pytest.importorskip("timm", reason="timm needs a torchvision that fits torch")
    from gputop_tracer.model import networks

    network, images = networks.build(name, pixels)
    count = sum(weight.numel() for weight in network.parameters()) / 1e6
    assert images == shape and count == pytest.approx(millions, rel=0.03)


def test_a_step_of_a_network_is_traced():
    pytest.importorskip("timm", reason="timm needs a torchvision that fits torch")
    import gputop

    found = gputop.estimate("mobilenetv3_small_100", micro_batch=4)
    assert found.peak.tier == "trace" and found.peak.allocated > 8 * 2.5e6
    assert any("224 x 224 pixels" in note for note in found.peak.notes)


def test_a_name_that_timm_does_not_know():
    pytest.importorskip("timm", reason="timm needs a torchvision that fits torch")
    from gputop_tracer.model import networks

    with pytest.raises(ValueError, match="timm has no network tf_efficientnet_bb0; near it are"):
        networks.build("tf_efficientnet_bb0", 0)
