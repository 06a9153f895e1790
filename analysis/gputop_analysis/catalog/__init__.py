"""The packaged tables of GPUs, prices and models, each row with its source."""

from gputop_analysis.catalog.config import shape_from_config
from gputop_analysis.catalog.gpus import GpuSpec, gpu, gpus
from gputop_analysis.catalog.models import hf_id, model, models, nearest_models
from gputop_analysis.catalog.params import Linear, is_moe, layer_params, linears, moe_layers, params, total
from gputop_analysis.catalog.prices import Offer, offers

__all__ = [
    "GpuSpec",
    "Linear",
    "Offer",
    "gpu",
    "gpus",
    "hf_id",
    "is_moe",
    "layer_params",
    "linears",
    "model",
    "models",
    "moe_layers",
    "nearest_models",
    "offers",
    "params",
    "shape_from_config",
    "total",
]
