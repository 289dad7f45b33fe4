"""Several processes under torchrun: ranks, collectives, and synchronised gradients.

DDP (Li et al. 2020, https://arxiv.org/abs/2006.15704) keeps the whole model in each process; FSDP2
(torch's `fully_shard`) keeps a shard of every tensor. Each process takes its slice of every batch, so the
loss equals that of a single process up to rounding.
"""

import ctypes
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor

from saccade.errors import UsageError
from saccade.models.modules import device_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Team:
    """The processes that train one model together; for a single one, collectives cost nothing."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Rank of this process on its machine, and index of its accelerator."""
    sharded: bool = False
    """Whether each process keeps only a shard of every tensor."""

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """The rank and the number of processes."""
        return self.rank, self.size

    def device(self, wanted: str) -> torch.device:
        """Return the wanted device, or for auto this process's accelerator, else the CPU."""
        if wanted != "auto":
            return find_device(wanted)
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            return torch.device("cpu")
        return torch.device(found.type, self.local) if self.size > 1 else torch.device(found.type)

    @property
    def accelerated(self) -> bool:
        """Whether this machine has an accelerator that works."""
        return self.device("auto").type != "cpu"

    def shard(self, module: nn.Module) -> None:
        """Shard every tensor over the processes, block by block (FSDP2)."""
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            for block in getattr(module, "blocks", getattr(module, "stages", ())):
                fully_shard(block)
            fully_shard(module)

    def wrap(self, module: nn.Module) -> nn.Module:
        """Return the module with gradients synchronised in `backward`."""
        if self.size == 1 or self.sharded:
            return module
        device = device_of(module)
        return nn.parallel.DistributedDataParallel(
            module, device_ids=None if device.type == "cpu" else [device.index]
        )

    def no_sync(self, module: nn.Module, wanted: bool) -> AbstractContextManager[object]:
        """Accumulate gradients without synchronising, for all but the last batch of a step."""
        if self.size == 1 or not wanted:
            return nullcontext()
        return _unsynced(module) if self.sharded else module.no_sync()  # type: ignore[operator]

    def mean(self, numbers: dict[str, float]) -> dict[str, float]:
        """Return the mean of each number over all processes."""
        if self.size == 1:
            return numbers
        sums = self.sum(list(numbers.values()))
        return {name: value / self.size for name, value in zip(numbers, sums, strict=True)}

    def sum(self, numbers: list[float]) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.size == 1:
            return numbers
        found = torch.tensor(numbers, dtype=torch.float64, device=_meeting())
        dist.all_reduce(found)
        return found.tolist()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set in any process."""
        return self.sum([float(flag)])[0] > 0 if self.size > 1 else flag

    def broadcast(self, value: T) -> T:
        """Broadcast the value of the leading process."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=_meeting())
        return box[0]

    def all_gather(self, value: T) -> list[T]:
        """Gather the values of all processes."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box


def find_device(wanted: str) -> torch.device:
    """Return a device that works here, or for auto the accelerator, else the CPU; name those there are."""
    if wanted == "auto":
        return ALONE.device(wanted)
    try:
        torch.zeros(1, device=wanted).to("cpu")  # does it exist, and does it work?
        return torch.device(wanted)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).split(". ")[0].splitlines()[0]
        why = "it is not the name of a device" if why.startswith("Expected one of") else why
        found = torch.accelerator.current_accelerator(check_available=True)
        here = ["auto", "cpu", *([found.type] if found else [])]
        raise UsageError(
            f"device is {wanted!r}, which is not available here ({why}); choose one of {', '.join(here)}"
        ) from error


ALONE = Team()
_teams = [ALONE]


def current() -> Team:
    """Return the team of this process."""
    return _teams[-1]


def _meeting() -> torch.device:
    """Return the device for collectives: nccl needs its accelerator."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def _unsynced(module: nn.Module) -> Iterator[None]:
    module.set_requires_gradient_sync(False)  # type: ignore[operator]
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)  # type: ignore[operator]


def launched() -> bool:
    """Return whether this is one of several processes that torchrun started."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Team]:
    """Join the process group while the block runs; a single process has none to join."""
    if not launched():
        yield ALONE
        return
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local)
    store, rank, size = next(rendezvous("env://"))
    attempt = (store.add("saccade/arrivals", 1) - 1) // size  # torchrun keeps one store across restarts
    store = dist.PrefixStore(f"saccade/{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=size)
    _teams.append(Team(rank, size, local))
    try:
        yield current()
    finally:
        _teams.pop()
        dist.destroy_process_group()


def launch() -> str:
    """Return a name for this launch of torchrun, kept across its restarts; "" without torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {socket.gethostname()} {os.getppid()}"


def restarted() -> bool:
    """Return whether torchrun restarted this process after one of them failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_batch(batch: int, team: Team, noun: str = "images") -> None:
    """Refuse a batch that does not divide evenly."""
    if batch % team.size:
        raise UsageError(
            f"a batch of {batch} {noun} does not divide evenly among {team.size} processes; "
            f"set budget.batch to a multiple of {team.size}"
        )


def whole(tensor: Tensor) -> Tensor:
    """Return the full tensor, gathered from its shards."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def copy_into(target: Tensor, source: Tensor) -> None:
    """Copy a full tensor into one that may be sharded."""
    if isinstance(target, DTensor):
        source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
    target.copy_(source)


def matching(parameter: Tensor, value: Tensor) -> Tensor:
    """Copy a value to the parameter's device, sharded like it unless it is a single number."""
    value = value.clone().to(parameter.device)
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value


_MMAP_THRESHOLD, _TOP_PAD, _TRIM_THRESHOLD = -3, -2, -1
"""Names of glibc's mallopt (malloc.h)."""
_LARGE, _PAD, _NEVER = 1 << 30, 64 << 20, (1 << 31) - 1


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory; return False without glibc.

    Every step takes and frees the same tensors of some megabytes. By default they go back to the system, and
    the next step pays for having thousands of pages zeroed and mapped again: a seventh of the time of a small
    ViT's step (benchmarks/step.py). The peak stays what it was; what was freed below it is not given back
    until the process ends.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        change = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    wanted = ((_MMAP_THRESHOLD, _LARGE), (_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _PAD))
    return sum(change(name, value) for name, value in wanted) == len(wanted)
