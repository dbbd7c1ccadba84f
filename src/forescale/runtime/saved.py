"""What a forward saves for its backward: counted, and sent to the host and back."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class _Slot:
    """One saved tensor, wherever it is."""

    __slots__ = ("__weakref__", "device", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.device = tensor, tensor.device


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    """Return where a tensor lies; of one that is split over ranks where this rank's part does."""
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()  # noqa: SLF001


def _key(tensor: Tensor) -> int:
    """Return what tensors that lie in one place have in common, those without bytes too."""
    value: int = _storage(tensor)._cdata  # noqa: SLF001
    return value


class Saved:
    """Tensors that one forward of one stage saved; parameters are not among them."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._own = {_key(parameter) for parameter in parameters}
        self._slots: list[_Slot] = []
        self._away = False

    @property
    def num_bytes(self) -> int:
        """Bytes on the device, each storage once."""
        if self._away:
            return 0
        return sum({_key(slot.tensor): _storage(slot.tensor).nbytes() for slot in self._slots}.values())

    def noting(self) -> AbstractContextManager[None]:
        """Note what is saved meanwhile."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)

    def offload(self) -> None:
        """Move everything to the host."""
        self._move(to_host=True)

    def reload(self) -> None:
        """Bring everything back."""
        self._move(to_host=False)

    def _move(self, *, to_host: bool) -> None:
        for slot in self._slots:
            slot.tensor = slot.tensor.to("cpu" if to_host else slot.device, copy=True)
        self._away = to_host

    def _pack(self, tensor: Tensor) -> _Slot | Tensor:
        if _key(tensor) in self._own:
            return tensor
        slot = _Slot(tensor)
        self._slots.append(slot)
        return slot

    def _unpack(self, packed: _Slot | Tensor) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if self._away:
            raise RuntimeError("a backward pass needs what is still on the host")
        return packed.tensor
