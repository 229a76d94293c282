"""The items of work of the warp-specialized gather's programs: tiles and, as in stream-K, parts of K of the tiles that
full rounds leave over.

Programs take the items in turns. First parts of all tiles left over come before second ones, and all parts together are
no more than the programs. So a part is its program's last item, behind whole tiles.
"""

from __future__ import annotations

from collections import namedtuple

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from autotune.kernels.primitives.specialized import await_step

Item = namedtuple("Item", "tile part begin steps tail")
"""A tile or, of one that is left for a last round, one of SPLITS parts of its K: so many ``steps`` from ``begin`` on.
``tail`` is the number of the tile among those left, or less than zero.
"""

Tail = namedtuple("Tail", "sums stored target")
"""Sums of later parts, fp32 [tiles left, SPLITS - 1, PARTS, rows, columns], and how many of a tile's have been stored
in all launches, int32 [tiles left]: the ``target`` after this one.
"""


@gluon.jit
def tiles_and_left(tiles, OWNERS: gl.constexpr):
    """The number of tiles, and of those that are left after full rounds."""
    count = OWNERS * tiles.own_m * tiles.tiles_n
    return count, count % gl.num_programs(0)


@gluon.jit
def items_of(tiles, OWNERS: gl.constexpr, SPLITS: gl.constexpr):
    count, left = tiles_and_left(tiles, OWNERS)
    return count + left * (SPLITS - 1)


@gluon.jit
def item_at(number, tiles, OWNERS: gl.constexpr, SPLITS: gl.constexpr, FORM: gl.constexpr):
    steps = gl.cdiv(tiles.depth, FORM.DEPTH)
    item = Item(number, 0, 0, steps, -1)
    if SPLITS > 1:
        count, left = tiles_and_left(tiles, OWNERS)
        beyond = number - (count - left)
        part = gl.maximum(beyond, 0) // gl.maximum(left, 1)
        each = gl.where(beyond < 0, steps, gl.cdiv(steps, SPLITS))
        begin = part * each
        item = Item(number - part * left, part, begin, gl.minimum(each, steps - begin), beyond - part * left)
    return item


@gluon.jit
def joined(
    total, item, tail, ring, step, PART: gl.constexpr, SPLITS: gl.constexpr, layout: gl.constexpr, FORM: gl.constexpr
):  # fmt: skip
    """Our sums of a part of K: a later one stores them; the first one adds up all, which a ``step`` says are there."""
    COLUMNS: gl.constexpr = FORM.PIECES * FORM.COLUMNS
    rows = gl.arange(0, FORM.ROWS, layout=gl.SliceLayout(1, layout))
    columns = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, layout))
    places = rows[:, None] * COLUMNS + columns[None, :]
    box = item.tail * (SPLITS - 1) * FORM.PARTS + PART
    if item.part > 0:
        box += (item.part - 1) * FORM.PARTS
        gl.store(tail.sums + box * FORM.ROWS * COLUMNS + places, total)
        tl.debug_barrier()
        gl.atomic_add(tail.stored + item.tail, 1, sem="release", scope="gpu")
    elif item.tail >= 0:
        await_step(ring, step, FORM)
        for _ in range(SPLITS - 1):  # unrolled, its loads spill
            total += gl.load(tail.sums + box * FORM.ROWS * COLUMNS + places)
            box += FORM.PARTS
    return total
