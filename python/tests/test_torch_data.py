"""nacre.torch's dataset and loader, by NumPy on the host. With PyTorch and a GPU: on_gpu.py."""

import importlib.util
import os
import pickle
import unittest
from contextlib import contextmanager
from unittest import mock

import numpy as np

import nacre
import nacre.torch
from nacre._memory import Memory
from nacre.torch import Loader, RecordDataset

from .support import OnMount


class DataTest(OnMount):
    def setUp(self):
        super().setUp()
        self.records = np.random.default_rng(1).random((1000, 3, 5)).astype(np.float32)
        first = self.make("first", b"headhead" + self.records[:400].tobytes())
        second = self.make("second", b"headhead" + self.records[400:].tobytes())
        self.dataset = RecordDataset([first, second], (3, 5), "float32", header=8, framework="np")
        self.addCleanup(self.dataset.close)

    def test_records(self):
        self.assertEqual(len(self.dataset), 1000)
        for index in (0, 399, 400, 999, -1, -1000):
            np.testing.assert_array_equal(self.dataset[index], self.records[index])
        for index in (1000, -1001):
            with self.assertRaises(IndexError):
                self.dataset[index]
        wanted = [5, 6, 7, 398, 399, 400, 401, 3, 3, 999]
        np.testing.assert_array_equal(np.stack(self.dataset.__getitems__(wanted)), self.records[wanted])
        self.assertEqual(self.dataset.__getitems__([]), [])

    def test_neighbours_are_one_extent(self):
        self.assertEqual(len(self.dataset.extents([5, 6, 7, 398, 399, 400, 401], None)), 3)

    def test_it_can_be_sent_to_other_processes(self):
        other = pickle.loads(pickle.dumps(self.dataset))
        self.addCleanup(other.close)
        np.testing.assert_array_equal(other[17], self.records[17])

    def test_files_that_do_not_fit(self):
        with self.assertRaisesRegex(ValueError, "no whole records of 60 bytes"):
            RecordDataset(self.path("first"), (3, 5), np.float32)
        with self.assertRaisesRegex(TypeError, "dtype"):
            RecordDataset(self.path("first"), (3, 5), "float31")
        with self.assertRaises(FileNotFoundError):
            RecordDataset(self.path("third"), (3, 5), "F32")

    def loader(self, batch=64, **named):
        return Loader(self.dataset, batch, device="cpu", **named)

    def test_batches_in_order(self):
        for prefetch in (1, 2, 50):
            batches = list(self.loader(prefetch=prefetch))
            self.assertEqual([len(batch) for batch in batches], [64] * 15 + [40])
            np.testing.assert_array_equal(np.concatenate(batches), self.records)
        self.assertEqual(len(self.loader()), 16)
        self.assertEqual(len(list(self.loader(drop_last=True))), 15)
        self.assertEqual(list(self.loader(2000, drop_last=True)), [])

    def order(self, batches):
        where = {record.tobytes(): i for i, record in enumerate(self.records)}
        return [where[record.tobytes()] for batch in batches for record in batch]

    def test_shuffling(self):
        loader = self.loader(shuffle=True, seed=3)
        first, second = self.order(loader), self.order(loader)
        self.assertEqual(sorted(first), list(range(1000)))
        self.assertNotEqual(first, list(range(1000)))
        self.assertNotEqual(first, second)
        again = self.loader(shuffle=True, seed=3)
        again.epoch = 1
        self.assertEqual(self.order(again), second)

    def test_ranks_share_the_records(self):
        parts = [self.order(self.loader(shuffle=True, rank=rank, world=3)) for rank in range(3)]
        self.assertEqual([len(part) for part in parts], [320] * 3)
        self.assertEqual(len(set().union(*parts)), 960)

    def test_a_loop_that_ends_early_leaves_nothing_under_way(self):
        from nacre import _reads

        for batch in self.loader(prefetch=8):
            np.testing.assert_array_equal(batch, self.records[:64])
            break
        del batch
        import gc

        gc.collect()
        self.assertEqual(len(_reads._under_way), 0)

    def test_memory_is_settled_in_the_stream_that_it_comes_from(self):
        loader, current, settled = self.loader(), ["default"], []

        @contextmanager
        def own_stream():
            current.append("own")
            yield
            current.pop()

        with mock.patch.object(loader, "_own_stream", own_stream):
            with mock.patch.object(Memory, "settle", lambda _: settled.append(current[-1])):
                list(loader)
        self.assertEqual(settled, ["own"] * 16)

    def test_a_file_that_is_cut_short_meanwhile(self):
        loader = self.loader()
        os.truncate(self.path("second"), 100)
        with self.assertRaisesRegex(nacre.Error, "second: .* it has become shorter"):
            list(loader)

    def test_bad_arguments(self):
        for named in ({"prefetch": 0}, {"rank": 2, "world": 2}):
            with self.assertRaises(ValueError):
                self.loader(**named)
        with self.assertRaises(ValueError):
            next(iter(Loader(self.dataset, 64, device="cuda")))


@unittest.skipIf(importlib.util.find_spec("torch"), "PyTorch is installed")
class WithoutTorchTest(unittest.TestCase):
    def test_what_needs_it_says_so(self):
        for name in ("StorageReader", "StorageWriter"):
            with self.assertRaisesRegex(ImportError, f"nacre.torch.{name} needs PyTorch, which is not installed"):
                getattr(nacre.torch, name)
        from nacre import safetensors

        with self.assertRaisesRegex(ImportError, "framework='torch' needs PyTorch"):
            safetensors.load_file("/nowhere", framework="torch")


if __name__ == "__main__":
    unittest.main()
