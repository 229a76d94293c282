"""The LL protocol: data travels in words of eight bytes, four of data and four of flag, and the reader polls the words.

The way to a peer is then a single store: nothing is signalled, and nothing waits for a store to be acknowledged. What
is sent is there after one trip instead of two, at twice the bytes. It rests on one property of the hardware alone: an
aligned store of eight bytes becomes visible whole, data and flag at once. No order among words is needed, because every
word is looked at for itself, again and again, until its flag is this launch's; a volatile load goes to the L2, where
peers' stores arrive. NVIDIA's GPUs have both properties (NCCL's low-latency protocol rests on them); on AMD's an
ordinary store may stay in the sender's L2.

The flag is the epoch, counted so that it is never zero. A word of the slot holds zero at first, later the flag of two
launches ago: never the one that is waited for. That nobody overwrites a word before it has been read is the inbox's
argument (see the workloads' device code); what it needs is weaker than an acquire: a load whose value decided that the
launch may end is over.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import num_threads
from triton.runtime.jit import constexpr_function

from autotune.heap import device as heap


@triton.jit
def ll_flag(epoch):
    """The flag of a launch, int32, from its epoch, int32 or int64: never that of a launch shortly before."""
    flag = epoch.to(tl.int32) + 1
    return tl.where(flag == 0, 1 << 30, flag)


@triton.jit
def ll_words(data, flag):
    """Words with ``data``, int64 of which only the lower half may be set."""
    return data | (flag.to(tl.int64) << 32)


@constexpr_function
def per_word(TYPE, LL=True):
    """The elements of TYPE that an LL word holds; 1 where they travel otherwise."""
    return 32 // TYPE.primitive_bitwidth if LL else 1


@triton.jit
def ll_data(part):
    """Elements [rows, columns] as data of words, int64: two of 16 bits in each, [rows, columns // 2], or one of 32."""
    if part.dtype.primitive_bitwidth == 16:
        low, high = tl.split(tl.reshape(part.to(tl.uint16, bitcast=True), (part.shape[0], part.shape[1] // 2, 2)))
        data = low.to(tl.int64) | (high.to(tl.int64) << 16)
    else:
        data = part.to(tl.uint32, bitcast=True).to(tl.int64)
    return data


@triton.jit
def packed(value, epoch, LL: tl.constexpr = True):
    """Elements as words of a launch; as they are where they travel otherwise."""
    if LL:
        value = ll_words(ll_data(value), ll_flag(epoch))
    return value


@triton.jit
def halves(words, TYPE: tl.constexpr):
    """The two elements of 16 bits in each word, fp32."""
    low = (words & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True).to(tl.float32)
    high = ((words >> 16) & 0xFFFF).to(tl.uint16).to(TYPE, bitcast=True).to(tl.float32)
    return low, high


@triton.jit
def interleaved(low, high):
    """[rows, words] of each half as [rows, columns]."""
    return tl.reshape(tl.join(low, high), (low.shape[0], 2 * low.shape[1]))


@triton.jit
def ll_sum(words, TYPE: tl.constexpr):
    """The sum over the first dimension of words [.., rows, words], int64 or int32, whose lower half or whole holds
    elements of TYPE: fp32 [rows, columns].

    The compiler fixes its order.
    """
    words = words.to(tl.int32)
    if TYPE.primitive_bitwidth == 16:
        low, high = halves(words, TYPE)
        acc = interleaved(tl.sum(low, axis=0), tl.sum(high, axis=0))
    else:
        acc = tl.sum(words.to(TYPE, bitcast=True), axis=0)
    return acc


@triton.jit
def ll_pack(value, flag):
    return ll_words(value.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF, flag)


@triton.jit
def ll_unpack(words):
    return words.to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def any_set(bits):
    """Not 0 if a bit of ``bits`` is set. The interpreter would go through them one by one for an or."""
    if heap.compiles_for_cuda():
        found = tl.reduce_or(bits, None)
    else:
        found = tl.max((bits != 0).to(tl.int32))
    return found


@triton.jit
def ll_missing(words, flag):
    """Not 0 if a word does not carry ``flag`` yet."""
    return any_set((words >> 32).to(tl.int32) ^ flag)


@triton.jit
def ll_wait(place, flag, mask, peers):
    """Poll words [any shape] in our own heap until all that ``mask`` asks for carry ``flag``; the others' data is 0.

    Bounded as ``wait`` in ``heap/device.py`` is; where it times out, the words are what was there. Of fewer words than
    the program has threads, several threads hold each: one may have seen it before it came, and another one after.
    """
    empty = flag.to(tl.int64) << 32
    words = tl.load(place, mask=mask, other=empty, volatile=True)
    missing = ll_missing(words, flag)
    spins = 0
    while (missing != 0) & (spins < peers.spins):
        spins = heap.next_spin(spins, peers.status, peers.spins)
        words = tl.load(place, mask=mask, other=empty, volatile=True)
        missing = ll_missing(words, flag)
    if missing != 0:
        heap.time_out(peers.status)
    if heap.compiles_for_cuda():
        if words.numel < num_threads():
            tl.debug_barrier()  # from here on all see what one has seen
            words = tl.load(place, mask=mask, other=empty, volatile=True)
    return words
