"""For trainings that compile nothing: the optimizers do not load ``torch._dynamo``, which would be half of their start.

They only ask it to leave a function alone (``torch/_compile.py``) and to break a graph (``torch/optim/optimizer.py``).
"""

import sys
import types

import torch

stand_in = types.ModuleType("torch._dynamo")
stand_in.disable = lambda function, *_, **__: function
stand_in.graph_break = lambda: None
sys.modules["torch._dynamo"] = torch._dynamo = stand_in
