"""More than one process under torchrun: who they are, what they agree on, how the gradients meet.

DDP (Li et al. 2020, https://arxiv.org/abs/2006.15704) keeps the whole model in each process; FSDP2
(torch's `fully_shard`) keeps a slice of every tensor. Each process takes its slice of every batch, so that
the loss is that of a single process to rounding.
"""

import os
import socket
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

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Team:
    """The processes that train one model together; a single one agrees with itself at no cost."""

    rank: int = 0
    size: int = 1
    local: int = 0
    """Number of this process on its machine, and of its accelerator."""
    sharded: bool = False
    """Does each process keep only a slice of every tensor?"""

    @property
    def leads(self) -> bool:
        """Is it this one that writes files and speaks?"""
        return self.rank == 0

    @property
    def part(self) -> tuple[int, int]:
        """Which of how many."""
        return self.rank, self.size

    def device(self, wanted: str) -> torch.device:
        """Where to compute: as asked, or the accelerator of this process, or the CPU."""
        if wanted != "auto":
            try:
                torch.zeros(1, device=wanted).to("cpu")  # is it there, and can it hold numbers?
                return torch.device(wanted)
            except (RuntimeError, AssertionError, NotImplementedError) as error:
                why = str(error).split(". ")[0].splitlines()[0]
                told = f"device is {wanted!r}, which is not here ({why}); set device=auto"
                raise UsageError(told) from error
        found = torch.accelerator.current_accelerator(check_available=True)
        if found is None:
            return torch.device("cpu")
        return torch.device(found.type, self.local) if self.size > 1 else torch.device(found.type)

    def share(self, module: nn.Module) -> None:
        """Leave a slice of every tensor here, block by block (FSDP2)."""
        if self.sharded:
            from torch.distributed.fsdp import fully_shard

            for block in getattr(module, "blocks", getattr(module, "stages", ())):
                fully_shard(block)
            fully_shard(module)

    def wrap(self, module: nn.Module) -> nn.Module:
        """The module whose gradients meet in `backward`."""
        if self.size == 1 or self.sharded:
            return module
        device = next(module.parameters()).device
        return nn.parallel.DistributedDataParallel(
            module, device_ids=None if device.type == "cpu" else [device.index]
        )

    def quiet(self, module: nn.Module, wanted: bool) -> AbstractContextManager[object]:
        """Let gradients add up without meeting the others': for all but the last batch of a step."""
        if self.size == 1 or not wanted:
            return nullcontext()
        return _unsynced(module) if self.sharded else module.no_sync()  # type: ignore[operator]

    def mean(self, numbers: dict[str, float]) -> dict[str, float]:
        """The mean over all processes of each number."""
        if self.size == 1:
            return numbers
        sums = self.sum(list(numbers.values()))
        return {name: value / self.size for name, value in zip(numbers, sums, strict=True)}

    def sum(self, numbers: list[float]) -> list[float]:
        """The sum over all processes of each number."""
        if self.size == 1:
            return numbers
        found = torch.tensor(numbers, dtype=torch.float64, device=_meeting())
        dist.all_reduce(found)
        return found.tolist()

    def any(self, flag: bool) -> bool:
        """Does any process say so?"""
        return self.sum([float(flag)])[0] > 0 if self.size > 1 else flag

    def told(self, value: T) -> T:
        """What the leading process says."""
        if self.size == 1:
            return value
        box: list[Any] = [value]
        dist.broadcast_object_list(box, src=0, device=_meeting())
        return box[0]

    def gathered(self, value: T) -> list[T]:
        """What each process says."""
        if self.size == 1:
            return [value]
        box: list[Any] = [None] * self.size
        dist.all_gather_object(box, value)
        return box


ALONE = Team()
_teams = [ALONE]


def current() -> Team:
    """The team that this process is in."""
    return _teams[-1]


def _meeting() -> torch.device:
    """Where tensors must be to travel: nccl knows only its accelerator."""
    return torch.device("cuda") if dist.get_backend() == "nccl" else torch.device("cpu")


@contextmanager
def _unsynced(module: nn.Module) -> Iterator[None]:
    module.set_requires_gradient_sync(False)  # type: ignore[operator]
    try:
        yield
    finally:
        module.set_requires_gradient_sync(True)  # type: ignore[operator]


def launched() -> bool:
    """Is this one of several processes that torchrun began?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined() -> Iterator[Team]:
    """Meet the other processes for as long as the block runs; alone there is nobody to meet."""
    if not launched():
        yield ALONE
        return
    cuda = torch.cuda.is_available()
    local = int(os.environ.get("LOCAL_RANK", "0"))
    if cuda:
        torch.cuda.set_device(local)
    store, rank, size = next(rendezvous("env://"))
    attempt = (store.add("saccade/arrivals", 1) - 1) // size  # torchrun keeps one store over its restarts
    store = dist.PrefixStore(f"saccade/{attempt}", store)  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if cuda else "gloo", store=store, rank=rank, world_size=size)
    _teams.append(Team(rank, size, local))
    try:
        yield current()
    finally:
        _teams.pop()
        dist.destroy_process_group()


def launch() -> str:
    """A name for this start of torchrun, the same after it has restarted its processes; "" without it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return ""
    return f"{os.environ['TORCHELASTIC_RUN_ID']} {socket.gethostname()} {os.getppid()}"


def restarted() -> bool:
    """Has torchrun begun this process anew after one of them failed?"""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def check_batch(batch: int, team: Team, noun: str = "pictures") -> None:
    """Refuse a batch that cannot be parted evenly."""
    if batch % team.size:
        raise UsageError(
            f"a batch of {batch} {noun} cannot be parted evenly among {team.size} processes; "
            f"set budget.batch to a multiple of {team.size}"
        )


def whole(tensor: Tensor) -> Tensor:
    """The full tensor, wherever its slices are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def put(target: Tensor, source: Tensor) -> None:
    """Copy a full tensor into one that may be in slices."""
    if isinstance(target, DTensor):
        source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements)
    target.copy_(source)


def like(parameter: Tensor, value: Tensor) -> Tensor:
    """A copy where the parameter is: in slices if it is, unless the value is a single number."""
    value = value.clone().to(parameter.device)
    if isinstance(parameter, DTensor) and value.shape == parameter.shape:
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value
