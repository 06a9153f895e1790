"""For trainings that compile nothing: optimizers and DDP do not load ``torch._dynamo``, half of
what a start takes.

They only ask it to leave a function alone (``torch/_compile.py``), to break a graph
(``torch/optim/optimizer.py``), how it would cut DDP's buckets
(``torch/nn/parallel/distributed.py``), whether a trace goes on around a checkpoint
(``torch/utils/checkpoint.py``), and to forget old process groups (``distributed_c10d``).
"""

import sys
import types

import torch

stand_in = types.ModuleType("torch._dynamo")
stand_in.disable = lambda function, *_, **__: function
stand_in.graph_break = lambda: None
stand_in.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
stand_in.config = types.SimpleNamespace(error_on_nested_fx_trace=False)
stand_in.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
sys.modules["torch._dynamo"] = torch._dynamo = stand_in
