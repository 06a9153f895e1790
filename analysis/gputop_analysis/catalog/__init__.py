"""The packaged tables of GPUs, prices and models, each row with its source."""

from gputop_analysis.catalog.config import shape_from_config
from gputop_analysis.catalog.efficiency import Efficiency, efficiency_of
from gputop_analysis.catalog.gpu_names import GpuMatch, find_gpu, gpu, match_gpu, nearest_gpus
from gputop_analysis.catalog.gpus import GpuSpec, gpus
from gputop_analysis.catalog.model_names import nearest_models
from gputop_analysis.catalog.models import hf_id, match_model, model, models
from gputop_analysis.catalog.params import (
    Linear,
    is_moe,
    layer_params,
    linears,
    moe_layers,
    params,
    total,
)
from gputop_analysis.catalog.prices import Offer, offers

__all__ = [
    "Efficiency",
    "GpuMatch",
    "GpuSpec",
    "Linear",
    "Offer",
    "efficiency_of",
    "find_gpu",
    "gpu",
    "gpus",
    "hf_id",
    "is_moe",
    "layer_params",
    "linears",
    "match_gpu",
    "match_model",
    "model",
    "models",
    "moe_layers",
    "nearest_gpus",
    "nearest_models",
    "offers",
    "params",
    "shape_from_config",
    "total",
]
