"""What a run is, as far as advice depends on it: device, ranks, the loop's owner, versions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from gputop_agent.contracts import Hello, LoaderInUse, ParallelFacts
from gputop_analysis.findings.shares import on_device
from gputop_analysis.view import RunView

TRAINERS = {
    "transformers": "transformers",
    "trl": "transformers",
    "lightning": "lightning",
    "pytorch_lightning": "lightning",
    "deepspeed": "deepspeed",
}
"""Packages that own a training loop, and the one whose arguments they take."""
_ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@dataclass(frozen=True)
class Facts:
    """One rank of a run, read from its hello; a fact that is not known makes no condition fail."""

    view: RunView
    rank: int

    @cached_property
    def hello(self) -> Hello:
        """What the rank said about itself."""
        return self.view.hello(self.rank)

    @property
    def loader(self) -> LoaderInUse:
        """The DataLoader that feeds the training; empty where there is none, or none was seen."""
        return self.hello.get("dataloader") or {}

    @property
    def on_gpu(self) -> bool:
        """Whether it trains on an accelerator."""
        return on_device(self.view, self.rank)

    @property
    def world(self) -> int:
        """Ranks of the run."""
        return self.view.world_size

    @property
    def parallel(self) -> ParallelFacts:
        """How the training is spread over ranks."""
        return self.hello.get("parallel") or {}

    @property
    def acts(self) -> bool:
        """Whether the training acts in an environment: reinforcement learning."""
        libraries = self.hello.get("libraries") or {}
        imported = any(libraries.get(name) for name in ("gymnasium", "gym"))
        return imported or self.hello.get("acts") is True

    @cached_property
    def trainer(self) -> str:
        """``transformers``, ``lightning`` or ``deepspeed`` where that owns the loop; else empty.

        Told by the packages between the user's line and the loop; by old records, that do not tell
        them, where the loop's own line lies.
        """
        inside = self.loader.get("inside")
        if inside is None:
            folder = str(self.loader.get("site") or "").partition("/")[0]
            inside = [folder] if folder in TRAINERS else []
        trainers = [TRAINERS[name] for name in inside if name in TRAINERS]
        return trainers[0] if trainers else ""

    def version(self, library: str) -> tuple[int, ...]:
        """Of ``torch``, ``python`` or a library that was imported, as numbers; empty where it is
        not known.
        """
        written = self.hello.get(library) if library in ("torch", "python") else None  # type: ignore[misc]
        written = written or (self.hello.get("libraries") or {}).get(library)
        return tuple(
            int(part) for part in re.findall(r"\d+", str(written or "").partition("+")[0])[:3]
        )

    @property
    def capability(self) -> float:
        """CUDA compute capability; 0: not known, or no such device."""
        try:
            return float(self.hello.get("device_capability") or 0)
        except ValueError:
            return 0.0

    @property
    def compiled(self) -> bool:
        """Whether torch.compile is in use."""
        return bool((self.hello.get("compile") or {}).get("used"))

    @property
    def expandable(self) -> bool:
        """Whether the CUDA allocator has expandable segments already."""
        env = self.hello.get("env") or {}
        settings = " ".join(str(env.get(name) or "") for name in _ALLOCATOR)
        return "expandable_segments:true" in settings.lower()

    @property
    def offloads(self) -> bool:
        """Whether FSDP or DeepSpeed keeps parameters or optimizer state in host memory."""
        wrappers = (self.parallel.get(name) for name in ("fsdp", "deepspeed"))
        return any(
            "offload" in key and value
            for wrapper in wrappers
            if isinstance(wrapper, dict)
            for key, value in wrapper.items()
        )

    @property
    def splits_model(self) -> bool:
        """Whether ranks hold parts of the model: pipeline stages, or a mesh of dimensions."""
        mesh = (self.parallel.get("mesh") or {}).get("shape", ())
        return bool(self.parallel.get("pipeline")) or sum(size > 1 for size in mesh) > 1

    @property
    def shapes(self) -> int | None:
        """Different shapes of the input in the batches looked at; None: not counted."""
        distinct = (self.hello.get("shapes") or {}).get("distinct")
        return distinct if isinstance(distinct, int) else None

    @property
    def attention(self) -> str | None:
        """How a Hugging Face model computes attention; None: not known."""
        config = (self.hello.get("model") or {}).get("config") or {}
        return config.get("attention")

    def batch_has(self, *dtypes: str) -> bool:
        """Whether a tensor of the batch has one of these types; True where they are not known."""
        dtypes_of_batch = (self.hello.get("batch") or {}).get("dtypes")
        if isinstance(dtypes_of_batch, dict):
            values = dtypes_of_batch.values()
        else:
            values = dtypes_of_batch or ()
        names = {str(dtype_name).replace("torch.", "") for dtype_name in values}
        return not names or bool(names.intersection(dtypes))

    @cached_property
    def ranks_here(self) -> int:
        """Ranks on the same host."""
        host = self.view.host_of(self.rank)
        return sum(self.view.host_of(rank) == host for rank in self.view.ranks) or 1

    @property
    def cores(self) -> int:
        """Cores that the host gives the run; 0: not known."""
        return self.view.cores(self.rank)

    @property
    def threads(self) -> int | None:
        """Torch's threads for one operation; None: not known."""
        thread_count = (self.hello.get("threads") or {}).get("torch")
        return thread_count if isinstance(thread_count, int) else None

    @property
    def oversubscribed(self) -> bool:
        """Whether the ranks of this host alone are more busy threads than it has cores."""
        return 0 < self.cores < self.ranks_here * (self.threads or 1)


def facts(view: RunView, rank: int | None = None) -> Facts | None:
    """The facts of a rank, or of the first one; None for a record without ranks."""
    if rank is None or rank not in view.per_rank:
        rank = next(iter(view.ranks), None)
    if rank is None:
        return None
    key = f"facts of {rank}"
    if key not in view.known:
        view.known[key] = Facts(view, rank)
    return view.known[key]
