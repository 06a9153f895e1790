"""The catalog against what makers publish, and names as users write them."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat

from gputop_analysis import catalog
from gputop_analysis.data import table

ROWS = {row["name"]: row for row in table("models.csv")}


class GpuRow(BaseModel):
    """What every row of ``gpus.csv`` must be."""

    model_config = ConfigDict(extra="ignore")
    name: str = Field(min_length=2)
    vendor: str = Field(pattern="NVIDIA|AMD|Intel|Google")
    memory_gb: PositiveFloat
    memory_bw_gbs: PositiveFloat
    source: str = Field(min_length=3)


class PriceRow(BaseModel):
    """What every row of ``prices.csv`` must be."""

    gpu: str = Field(min_length=2)
    gpu_count: int = Field(gt=0)
    on_demand_usd_per_hr: NonNegativeFloat | None
    as_of: str = Field(min_length=4)
    source: str = Field(min_length=4)


def test_tables_are_well_formed():
    assert len([GpuRow(**row) for row in table("gpus.csv")]) == 191
    rows = [
        PriceRow(**{key: value or None for key, value in row.items()})
        for row in table("prices.csv")
    ]
    assert len(rows) == 502
    assert len(ROWS) == 274


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["param_diff"] == "0"])
def test_parameters_equal_the_published_count(name: str):
    assert catalog.total(catalog.model(name)) == int(ROWS[name]["total_params_official"])


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row["param_diff"] != "0"])
def test_parameters_equal_the_count_of_the_modules(name: str):
    counted = int(ROWS[name]["total_params_computed"])
    assert catalog.total(catalog.model(name)) == pytest.approx(counted, rel=1e-6)


def test_active_parameters_of_experts():
    for shape in catalog.models():
        if shape.experts and (said := ROWS[shape.name]["active_params_computed"]):
            parts = catalog.params(shape)
            active = sum(parts.values()) - parts["experts"] * (1 - shape.top_k / shape.experts)
            assert active == pytest.approx(float(said), rel=2e-3), shape.name


def test_layers_add_up_to_the_model():
    for shape in catalog.models():
        if shape.family in ("mllama", "t5"):
            continue
        kinds = [
            catalog.layer_params(shape, catalog.is_moe(shape, layer))
            for layer in range(shape.layers)
        ]
        parts = catalog.params(shape)
        for part in ("attention", "mlp", "experts", "router"):
            assert sum(kind[part] for kind in kinds) == parts[part], (shape.name, part)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("LLAMA-2-7B-hf", "llama-2-7b"),
        ("llama3-8b", "llama-3-8b"),
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("mixtral-8x7b-instruct-v0.1", "mixtral-8x7b"),
        ("google/gemma-2-9b-it", "gemma-2-9b"),
        ("google/gemma-3-4b-it", "gemma-3-4b-it (multimodal)"),
        ("EleutherAI/pythia-1.4b-deduped", "pythia-1.4b"),
    ],
)
def test_a_model_by_the_names_people_write(written: str, name: str):
    assert catalog.model(written).name == name


def test_every_model_is_found_by_its_own_names():
    for shape in catalog.models():
        assert catalog.model(shape.name) is shape
        assert catalog.model(catalog.hf_id(shape)) is shape


def test_an_unknown_model_gets_the_five_nearest():
    with pytest.raises(LookupError, match=r"nearest names are llama-7b(, [^,]+){4}$"):
        catalog.model("lama 9b")


@given(st.text(max_size=30))
@example("ERNIE4_5")
def test_any_text_is_a_name_or_a_lookup_error(text: str):
    for find in (catalog.model, catalog.gpu):
        try:
            assert find(text).name
        except LookupError as failure:
            assert re.search("nearest|is a model, and no GPU: gputop models", str(failure))


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("H100", "H100-SXM5-80GB"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"),
        ("A100 80GB", "A100-SXM4-80GB"),
        ("4090", "GeForce RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "GeForce RTX 4090"),
        ("Tesla T4", "T4"),
        ("l40s", "L40S"),
        ("NVIDIA H200", "H200-SXM-141GB"),
    ],
)
def test_a_gpu_by_the_names_people_and_drivers_write(written: str, name: str):
    assert catalog.gpu(written).name == name


def test_an_unknown_gpu_gets_the_five_nearest():
    with pytest.raises(LookupError, match="nearest names are H100, "):
        catalog.gpu("H100x")


def test_usable_memory_is_less_than_the_data_sheet_and_no_tenth_of_it():
    for spec in catalog.gpus():
        assert 0.9 * spec.memory_gb <= spec.usable_gib <= spec.memory_gb, spec.name


def test_half_of_an_mi250_is_a_device():
    assert catalog.gpu("MI250").memory_gb == 64
    assert catalog.gpu("MI250").dense_flops["bf16"] == pytest.approx(181e12, rel=1e-2)


def test_offers_are_for_one_gpu():
    offer = next(offer for offer in catalog.offers() if offer.instance == "p4de.24xlarge")
    assert (offer.gpu, offer.gpus) == ("A100-SXM4-80GB", 8)
    assert offer.on_demand_usd_per_hour == pytest.approx(40.97 / 8)


def test_the_catalog_needs_nothing_heavy():
    code = (
        "import sys, gputop_analysis.catalog as c; c.model('llama-3-8b'); c.gpus();"
        "print(sorted({'pydantic', 'numpy', 'torch', 'textual'} & set(sys.modules)))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )
