"""Sizes of tensors and the items of loaders, as far as a file shows them without being run."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

from forescale.frameworks.python.values import LONGEST, MISSING, Call, Opaque, Stream, Tensor

KEEPS: Final = frozenset((
    "to", "cuda", "cpu", "long", "int", "float", "half", "bfloat16", "contiguous", "pin_memory", "clone", "detach",
    "astype", "type", "copy", "numpy", "items", "values",
))  # fmt: skip
"""Methods of a tensor that keep its sizes."""
TAKES: Final = frozenset((
    "tensor", "as_tensor", "from_numpy", "LongTensor", "array", "asarray", "stack", "pin_memory", "list", "tuple",
    "iter", "tqdm", "trange", "cycle", "islice", "next", "setup_dataloaders", "_setup_dataloaders", "deepcopy",
))  # fmt: skip
"""Functions that return what they are given first, as a tensor or as something to go through."""
SIZED: Final = frozenset(("zeros", "ones", "rand", "randn", "empty", "full", "randint"))
"""Functions of torch that make a tensor of given sizes."""


def tensor(sizes: Sequence[int | None], place: str, *, is_batch: bool = False) -> Tensor:
    """Return a tensor of sizes."""
    return Tensor("a tensor", place, sizes=tuple(sizes), is_batch=is_batch)


def stream(item: Any, place: str) -> Stream:  # noqa: ANN401
    """Return what yields items like one."""
    return Stream("items that are loaded", place, item=item)


def made(call: Call, owner: object) -> Any:  # noqa: ANN401
    """Return the tensor or the items that a call makes; MISSING of other calls."""
    last = call.name.rpartition(".")[2]
    if last != call.name and isinstance(owner, Tensor):
        return _method(last, call, owner)
    first = next(iter(call.args), MISSING)
    if last == "next" and isinstance(first, Stream):
        return first.item
    if last in ("__next__", "__iter__") and isinstance(owner, Stream):
        return owner.item if last == "__next__" else owner
    if last == "enumerate" and isinstance(first, Stream):
        return stream((Opaque("the turn", call.place), first.item), call.place)
    if call.name == "len" and isinstance(first, Tensor) and not first.is_batch:
        return part(first.sizes, 0) or MISSING
    if last in TAKES and isinstance(first, Stream | Tensor):
        return first
    if call.name.startswith("torch.") and last in SIZED:
        return _sized(call)
    return MISSING


def _sized(call: Call) -> Any:  # noqa: ANN401
    """Return the tensor that a function of torch makes of sizes: a tuple, or numbers."""
    last = call.name.rpartition(".")[2]
    given = call.fields.get("size", next((arg for arg in call.args if isinstance(arg, tuple | list)), None))
    sizes = call.args if given is None and last not in ("full", "randint") else given
    return MISSING if sizes is None else tensor([_whole(size) for size in sizes], call.place)


def _method(last: str, call: Call, owner: Tensor) -> Any:  # noqa: ANN401
    """Return what a method of a tensor makes."""
    first = next(iter(call.args), None)
    if last in KEEPS:
        return owner
    if owner.is_batch and last in ("get", "pop"):
        return owner
    if last in ("view", "reshape"):
        return _viewed(first if isinstance(first, tuple | list) else call.args, call, owner)
    if last == "size":
        return shape(owner, call.place) if first is None else part(shape(owner, call.place), first)
    if last == "unsqueeze" and first == 0:
        return tensor((1, *owner.sizes), call.place)
    if last in ("chunk", "split", "tensor_split") and isinstance(first, int) and first > 0:
        whole = owner.sizes[0] if owner.sizes else None
        if whole is None or whole > LONGEST:
            return MISSING
        count = first if last != "split" else -(-whole // first)
        size = -(-whole // first) if last != "split" else first
        return [tensor((size, *owner.sizes[1:]), call.place)] * count
    return MISSING


def _viewed(sizes: Sequence[Any], call: Call, owner: Tensor) -> Any:  # noqa: ANN401
    """Return a tensor with other sizes, of which one may follow from the rest (-1)."""
    wanted = [_whole(size) for size in sizes]
    rest = [size for size in wanted if size != -1]
    if -1 in wanted:
        is_known = None not in owner.sizes and None not in rest
        whole = prod(filter(None, owner.sizes)) // max(1, prod(filter(None, rest))) if is_known else None
        wanted = [whole if size == -1 else size for size in wanted]
    return tensor(wanted, call.place)


def shape(owner: Tensor, place: str) -> tuple[Any, ...]:
    """Return the sizes of a tensor as a file has them."""
    return tuple(Opaque("a size", place) if size is None else size for size in owner.sizes)


def part(sizes: tuple[Any, ...], at: object) -> Any:  # noqa: ANN401
    """Return one of several sizes."""
    return sizes[at] if isinstance(at, int) and -len(sizes) <= at < len(sizes) else MISSING


def cut(owner: object, widths: Sequence[Any], place: str) -> Any:  # noqa: ANN401
    """Return a part of a tensor: for each dimension the ends of a slice, its width, or None of one that is left.

    Of what is no tensor, a slice whose width is known is one.
    """
    if isinstance(owner, Tensor) and owner.is_batch and widths[0] is None:
        return owner
    sizes: list[int | None] = []
    before = list(owner.sizes) if isinstance(owner, Tensor) else [None]
    for at, width in enumerate(widths):
        whole = before[at] if at < len(before) else None
        if isinstance(width, slice):
            start, stop = width.start or 0, width.stop
            is_known = whole is not None or (stop is not None and stop > start >= 0)
            sizes.append(len(range(stop if whole is None else whole)[width]) if is_known else None)
        elif width is not None:
            sizes.append(min(width, whole or width) if isinstance(width, int) else None)
    if not isinstance(owner, Tensor) and (len(widths) > 1 or sizes[:1] in ([], [None])):
        return MISSING
    return tensor((*sizes, *before[len(widths) :]), place, is_batch=getattr(owner, "is_batch", False))


def item_of(value: object, place: str) -> Any:  # noqa: ANN401
    """Return what a loop over a tensor, a batch or a loader is given in each turn; MISSING of anything else."""
    if isinstance(value, Stream):
        return value.item
    if not isinstance(value, Tensor):
        return MISSING
    return value if value.is_batch else tensor(value.sizes[1:], place)


def gathered(over: object, item: Any, place: str) -> Any:  # noqa: ANN401
    """Return the list or the table that a comprehension makes of a tensor or a batch, of whose items `item` is one."""
    item = item[1] if isinstance(item, tuple) and len(item) > 1 else item  # of a table
    if not isinstance(over, Tensor) or over.is_batch:
        return item if isinstance(over, Tensor) and isinstance(item, Tensor) else MISSING
    return tensor((*over.sizes[:1], *(item.sizes if isinstance(item, Tensor) else ())), place)


def _whole(value: object) -> int | None:
    return value if type(value) is int else None
