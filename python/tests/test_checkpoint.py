"""nacre.torch's storage for checkpoints, with stand-ins for what it takes from PyTorch. With PyTorch: on_gpu.py."""

import dataclasses
import importlib
import io
import os
import sys
import types
import unittest
from typing import Any
from unittest import mock

import nacre.torch

from .support import OnMount, names_watched

_MODULE = "nacre.torch.checkpoint"


@dataclasses.dataclass
class Plan:
    items: Any
    storage_data: Any = None


class Planner:
    def resolve_data(self, item):
        return io.BytesIO(item.content)


class Future:
    def set_result(self, value):
        self.value = value


def _stand_in(name, **its):
    """A module whose classes hold what they are made with."""
    module = types.ModuleType(name)
    module.__dict__.update(its)
    module.__getattr__ = lambda missing: types.SimpleNamespace
    return module


def stand_ins(processes):
    distributed = {"is_initialized": lambda: processes > 1, "get_world_size": lambda: processes}
    checkpoint = "torch.distributed.checkpoint"
    kinds = types.SimpleNamespace(BYTE_IO="bytes")
    made = [
        _stand_in("torch.distributed", **distributed),
        _stand_in(checkpoint),
        _stand_in(checkpoint + ".metadata"),
        _stand_in(checkpoint + ".planner", WriteItemType=kinds, LoadItemType=kinds),
        _stand_in(checkpoint + ".storage"),
        _stand_in("torch.futures", Future=Future),
    ]
    torch = _stand_in("torch", Tensor=(), distributed=made[0])
    return {module.__name__: module for module in (torch, *made)}


class CheckpointTest(OnMount):
    def with_processes(self, processes):
        patch = mock.patch.dict(sys.modules, stand_ins(processes))
        patch.start()
        self.addCleanup(nacre.torch.__dict__.pop, "checkpoint", None)
        self.addCleanup(patch.stop)
        sys.modules.pop(_MODULE, None)
        return importlib.import_module(_MODULE)

    def save(self, writer):
        writer.set_up_storage_writer(True, rank=0, use_collectives=True)
        items = [types.SimpleNamespace(index=i, type="bytes", content=bytes([i]) * 5000) for i in range(3)]
        (plan,) = writer.prepare_global_plan([writer.prepare_local_plan(Plan(items))])
        results = writer.write_data(plan, Planner()).value
        writer.finish(types.SimpleNamespace(), [results])

    def test_a_checkpoint_lasts(self):
        checkpoint = self.with_processes(1)
        path = self.path("new/step-1")
        with names_watched() as seen:
            self.save(checkpoint.StorageWriter(path))
        directories = {("fsync", self.directory), ("fsync", self.path("new"))}
        self.assertEqual(set(seen[:2]), directories)
        self.assertEqual(seen[2:], [("replace", path + "/.metadata"), ("fsync", path)])
        self.assertEqual(sorted(os.listdir(path)), [".metadata", "rank-0.data"])
        with names_watched() as seen:
            self.save(checkpoint.StorageWriter(path))
        # The older one has ended for good before anything of it is written over.
        self.assertEqual(seen, [("fsync", path), ("replace", path + "/.metadata"), ("fsync", path)])
        metadata = checkpoint.StorageReader(path).read_metadata()
        self.assertEqual([metadata.storage_data[i].offset for i in range(3)], [0, 8192, 16384])
        self.assertEqual(self.content("new/step-1/rank-0.data")[8192:13192], b"\1" * 5000)

    def test_ranks_that_do_not_speak_to_each_other_are_refused(self):
        writer = self.with_processes(4).StorageWriter(self.path("step-1"))
        with self.assertRaisesRegex(ValueError, "by one of 4 processes: .* leave use_collectives out"):
            writer.set_up_storage_writer(False, rank=0, use_collectives=False)
        writer.set_up_storage_writer(True, rank=0, use_collectives=True)
        writer.set_up_storage_writer(True)  # as PyTorch did before it had such a choice
        alone = self.with_processes(1).StorageWriter(self.path("step-1"))
        alone.set_up_storage_writer(True, rank=0, use_collectives=False)


if __name__ == "__main__":
    unittest.main()
