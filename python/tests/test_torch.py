"""With PyTorch on the host, where it is installed. On a GPU, and its distributed checkpoints: on_gpu.py."""

import importlib.util
import os
import unittest

import nacre
from nacre import safetensors
from nacre.torch import Loader, RecordDataset

from .support import OnMount

if importlib.util.find_spec("torch"):
    import torch
    from torch.utils.data import DataLoader


@unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed")
class TorchTest(OnMount):
    def setUp(self):
        super().setUp()
        self.data = os.urandom(100_000)
        self.file = nacre.open(self.make("data", self.data))
        self.addCleanup(self.file.close)

    def test_tensors_are_read_into_and_written(self):
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
            whole = torch.full((50_000,), 0xA5, dtype=torch.uint8)
            part = whole[64 : 64 + 32_000].view(dtype)
            self.assertEqual(self.file.read_into(part, 7), 32_000)
            self.assertEqual(bytes(whole.numpy()), b"\xa5" * 64 + self.data[7:32_007] + b"\xa5" * (50_000 - 32_064))
            with nacre.open(self.path("new"), "wb") as file:
                file.write(part)
            self.assertEqual(self.content("new"), self.data[7:32_007])

    def test_what_cannot_be_used_is_refused(self):
        for words, tensor in (
            ("not contiguous", torch.zeros(10, 10)[:, 1]),
            ("requires grad", torch.zeros(10, requires_grad=True)),
            ("conjugate", torch.zeros(10, dtype=torch.complex64).conj()),
            ("layout", torch.zeros(10, 10).to_sparse()),
            ("meta", torch.zeros(10, device="meta")),
        ):
            with self.subTest(words), self.assertRaisesRegex(nacre.UnusableMemory, words):
                self.file.read_into(tensor)

    def test_a_tensor_that_requires_grad_can_be_written(self):
        with nacre.open(self.path("new"), "wb") as file:
            file.write(torch.ones(3, requires_grad=True))
        self.assertEqual(self.content("new"), b"\0\0\x80\x3f" * 3)

    def test_models(self):
        weights = {
            "a": torch.randn(17, 33, 5),
            "b": torch.randn(300).to(torch.bfloat16),
            "c": torch.arange(3, dtype=torch.uint8),
            "empty": torch.zeros(0, 4, dtype=torch.int8),
            "one": torch.tensor(2.5, dtype=torch.float64),
            "parameter": torch.nn.Parameter(torch.randn(4)),
        }
        path = self.path("model")
        safetensors.save_file(weights, path)
        loaded = safetensors.load_file(path)
        self.assertEqual(loaded.keys(), weights.keys())
        for name, tensor in weights.items():
            self.assertEqual((loaded[name].dtype, loaded[name].shape), (tensor.dtype, tensor.shape))
            self.assertTrue(torch.equal(loaded[name], tensor.detach()), name)
        with safetensors.safe_open(path, framework="pt") as file:
            self.assertTrue(torch.equal(file.get_slice("a")[2:9:3, :, 1], weights["a"][2:9:3, :, 1]))
            self.assertTrue(torch.equal(file.get_tensor("one"), weights["one"]))
        with self.assertRaisesRegex(safetensors.SafetensorError, "tensor 'x': it is not contiguous"):
            safetensors.save_file({"x": torch.zeros(4, 4).T}, path)

    def records(self):
        records = torch.randn(500, 3, 4)
        with nacre.open(self.path("records"), "wb") as file:
            file.write(records)
        dataset = RecordDataset(self.path("records"), (3, 4), torch.float32)
        self.addCleanup(dataset.close)
        return records, dataset

    def test_the_loader(self):
        records, dataset = self.records()
        self.assertTrue(torch.equal(torch.cat(list(Loader(dataset, 64, device="cpu"))), records))

    def test_torchs_own_loader(self):
        records, dataset = self.records()
        for workers in (0, 2):
            context = {"multiprocessing_context": "spawn"} if workers else {}
            batches = list(DataLoader(dataset, batch_size=64, num_workers=workers, **context))
            self.assertTrue(torch.equal(torch.cat(batches), records))


if __name__ == "__main__":
    unittest.main()
