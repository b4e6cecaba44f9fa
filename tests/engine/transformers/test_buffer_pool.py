"""Memory of contexts: used again when nobody needs it, never while somebody does."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from kvpacket_rag.engine.transformers import buffer_pool as memory
from kvpacket_rag.engine.transformers.buffer_pool import BufferPool
from tests.conftest import tiny_model


def address(cache):
    return cache.layer_states(0)[0].data_ptr()


def test_the_memory_of_a_context_that_ended_serves_the_next():
    model = tiny_model()
    first = model.allocate(50)
    where = address(first)
    del first
    gc.collect()
    assert address(model.allocate(40)) == where


def test_a_small_context_leaves_the_memory_of_a_large_one_alone():
    pool = BufferPool()
    large = pool.lease(100 * memory.STEP)
    where = large.take((1,), torch.float32).data_ptr()
    del large
    gc.collect()
    small = pool.lease(10)
    assert small.take((1,), torch.float32).data_ptr() != where
    assert pool.lease(90 * memory.STEP).take((1,), torch.float32).data_ptr() == where


def test_memory_is_that_of_the_processor_whatever_the_default_device():
    with torch.device("meta"):
        assert BufferPool().lease(10).take((1,), torch.float32).device.type == "cpu"


@pytest.mark.parametrize(
    "share", [lambda c: c.view(0, 3), lambda c: c.filled(2), lambda c: c.compact(torch.tensor([0]))]
)
def test_two_contexts_never_share_memory_while_one_is_in_use_even_through_a_part_of_it(llama, share):
    part = share(llama.allocate(50).filled(5))
    gc.collect()
    others = [llama.allocate(50) for _ in range(4)]
    taken = {address(cache) for cache in others}
    assert len(taken) == 4
    keys = part.layer_states(0)[0]
    keys.fill_(7)
    for cache in others:
        cache.clear(0, 50, 0)
    assert keys.eq(7).all()


def test_parts_of_a_piece_do_not_overlap_and_hold_what_was_asked():
    lease = BufferPool().lease(2 * (12 + 20))
    one, two = lease.take((3, 4), torch.bfloat16), lease.take((2, 10), torch.bfloat16)
    one.fill_(1)
    two.fill_(2)
    assert (one.min(), one.max(), two.min(), two.max()) == (1, 1, 2, 2)
    assert one.shape == (3, 4)


def test_little_is_kept(monkeypatch):
    monkeypatch.setattr(memory, "STEP", 100)
    monkeypatch.setattr(memory, "KEPT_BYTES", 1000)
    pool = BufferPool()
    leases = [pool.lease(size) for size in (100, 200, 300, 900, 2000)]
    del leases
    gc.collect()
    assert sum(map(len, pool._free)) <= 1000
    assert 0 < len(pool._free) <= memory.KEPT


def test_threads_never_get_the_same_piece():
    pool, lock, held, clashes = BufferPool(), threading.Lock(), set(), []

    def work():
        for _ in range(300):
            lease = pool.lease(1000)
            tensor = lease.take((10,), torch.float32)
            with lock:
                if tensor.data_ptr() in held:
                    clashes.append(1)
                held.add(tensor.data_ptr())
            with lock:
                held.discard(tensor.data_ptr())
            del lease

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not clashes
