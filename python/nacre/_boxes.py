"""A box out of a row-major array in a file, as few strided extents."""

from __future__ import annotations

import itertools
from typing import Iterator, NamedTuple, Sequence, Tuple

MOST_ROWS = 1 << 20  # of one extent; libnacre takes four times as many


class Rows(NamedTuple):
    """Rows of `length` bytes, `stride` apart in the file from `offset` on; they lie side by side in memory at `place`."""

    offset: int
    length: int
    rows: int
    stride: int
    place: int


#: Of one dimension: (first, count, step), in elements.
Range = Tuple[int, int, int]


def _strides(shape: Sequence[int], item: int) -> Tuple[int, ...]:
    strides = [item]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return tuple(strides[: len(shape)])


def rows_of(shape: Sequence[int], item: int, box: Sequence[Range]) -> Iterator[Rows]:
    """The box's bytes in C order. `item`: bytes of an element; the box lies within the shape, with steps >= 1."""
    if any(count == 0 for _, count, _ in box):
        return
    strides = _strides(shape, item)
    offset = sum(first * stride for (first, _, _), stride in zip(box, strides))
    left, run = len(shape), item
    while left and box[left - 1][1] == shape[left - 1]:  # whole dimensions
        left -= 1
        run *= shape[left]
    if left and (box[left - 1][2] == 1 or box[left - 1][1] == 1):
        left -= 1
        run *= box[left][1]
    while left and box[left - 1][1] == 1:  # of one element: they only say where
        left -= 1
    rows, stride = (box[left - 1][1], box[left - 1][2] * strides[left - 1]) if left else (1, run)
    outer = [range(0, count * step * by, step * by) for (_, count, step), by in zip(box[: max(left - 1, 0)], strides)]
    place = 0
    for where in itertools.product(*outer):
        for begin in range(0, rows, MOST_ROWS):
            some = min(MOST_ROWS, rows - begin)
            yield Rows(offset + sum(where) + begin * stride, run, some, stride, place)
            place += some * run
