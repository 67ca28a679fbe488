"""Storage for torch.distributed.checkpoint on a Nacre mount: tensors go from and to GPU memory without a copy on the host.

    import torch.distributed.checkpoint as dcp
    dcp.save(state, storage_writer=nacre.torch.StorageWriter("/mnt/nacre/step-100"))
    dcp.load(state, storage_reader=nacre.torch.StorageReader("/mnt/nacre/step-100"))

A checkpoint is a directory: `rank-N.data` of each process, with the bytes of its tensors, each at a multiple of 4 KiB,
as they lie in memory, and `.metadata`, which is torch's metadata, pickled, with the place of each item. It is written
last, beside and then renamed: a directory without it is no checkpoint. Unpickling runs what a file says: load
checkpoints of people that you trust, as with PyTorch's own.
"""

from __future__ import annotations

import dataclasses
import io
import os
import pickle
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch.distributed.checkpoint import StorageReader as _StorageReader
from torch.distributed.checkpoint import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem, SavePlan, SavePlanner
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import _files
from .._boxes import rows_of
from .._durable import make_directory, sync_directory
from .._files import File
from .._frameworks import temporary_name
from .._submit import Extent
from .._transfer import Part, read_all, write_all

_METADATA = ".metadata"
_ALIGNMENT = 4096  # bytes: a block of an OST


@dataclasses.dataclass(frozen=True)
class Place:
    """Of one item. shape, dtype: of what lies there, for a tensor; None: bytes of torch.save."""

    file: str
    offset: int
    length: int
    shape: Optional[Tuple[int, ...]] = None
    dtype: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class _Rank:
    """The number that the coordinator gives each process."""

    number: int


def _done(value: Any) -> Any:
    future: Any = Future()
    future.set_result(value)
    return future


def _processes() -> int:
    return torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1


def _is_checkpoint_id(checkpoint_id: Union[str, "os.PathLike[str]"]) -> bool:
    return "://" not in os.fspath(checkpoint_id)


class StorageWriter(_StorageWriter):
    """Writes a checkpoint into a directory on a Nacre mount, which is made. It is durable when `dcp.save` returns.

    Tensors in GPU memory are written from there; ones that are not contiguous are copied first.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        super().__init__()
        self.path = os.fspath(path)
        self._rank = 0

    def reset(self, checkpoint_id: Union[str, "os.PathLike[str]", None] = None) -> None:
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True) and _processes() > 1:
            # Each rank would be numbered as the only one, and write over the others' files.
            raise ValueError(
                f"dcp.save(use_collectives=False) by one of {_processes()} processes: nacre.torch.StorageWriter writes "
                "one checkpoint of all ranks, for which they have to speak to each other: leave use_collectives out"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        make_directory(self.path)
        return plan

    def prepare_global_plan(self, plans: List[SavePlan]) -> List[SavePlan]:
        # An older checkpoint of this name ends here, for good: its data is about to be replaced.
        try:
            os.unlink(os.path.join(self.path, _METADATA))
            sync_directory(self.path)
        except FileNotFoundError:
            pass
        return [dataclasses.replace(plan, storage_data=_Rank(number)) for number, plan in enumerate(plans)]

    def _item(self, item: WriteItem, planner: SavePlanner, name: str, offset: int) -> Tuple[Any, Place]:
        """Its memory and its place."""
        data = planner.resolve_data(item)
        if item.type == WriteItemType.BYTE_IO:
            view = data.getbuffer()
            return view, Place(name, offset, view.nbytes)
        tensor = data.detach().contiguous()
        size = tensor.numel() * tensor.element_size()
        return tensor, Place(name, offset, size, tuple(tensor.shape), str(tensor.dtype).rpartition(".")[2])

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> "Future[List[WriteResult]]":
        name = f"rank-{plan.storage_data.number}.data"
        parts: List[Part] = []
        results: List[WriteResult] = []
        offset = 0
        for item in plan.items:
            memory, place = self._item(item, planner, name, offset)
            parts.append(Part(memory, offset))
            results.append(WriteResult(index=item.index, size_in_bytes=place.length, storage_data=place))
            offset += -(-place.length // _ALIGNMENT) * _ALIGNMENT
        with _files.open(os.path.join(self.path, name), "wb") as file:
            write_all(file, parts)
            file.sync()
        return _done(results)

    def finish(self, metadata: Metadata, results: List[List[WriteResult]]) -> None:
        metadata.storage_data = {one.index: one.storage_data for some in results for one in some}
        metadata.storage_meta = self.storage_meta()
        path = os.path.join(self.path, _METADATA)
        aside = temporary_name(path)
        with _files.open(aside, "xb") as file:
            file.write(pickle.dumps(metadata))
            file.sync()
        os.replace(aside, path)
        sync_directory(self.path)

    def storage_meta(self) -> Optional[StorageMeta]:
        return StorageMeta(checkpoint_id=self.path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, "os.PathLike[str]"]) -> bool:
        return _is_checkpoint_id(checkpoint_id)


class StorageReader(_StorageReader):
    """Reads a checkpoint that a StorageWriter has written, each tensor straight into its place.

    What is loaded may be sharded otherwise than what was saved: of each stored tensor the wanted box alone is read.
    A tensor that is not contiguous, or of another type than the stored one, goes through a copy on its device.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"]) -> None:
        super().__init__()
        self.path = os.fspath(path)
        self._places: Dict[MetadataIndex, Place] = {}

    def reset(self, checkpoint_id: Union[str, "os.PathLike[str]", None] = None) -> None:
        self._places = {}
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with _files.open(os.path.join(self.path, _METADATA)) as file:
            metadata: Metadata = pickle.loads(file.read())
        if getattr(metadata, "storage_meta", None) is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._places = metadata.storage_data
        strange = next((place for place in self._places.values() if not isinstance(place, Place)), None)
        if strange is not None:
            raise ValueError(f"{self.path} was not written by nacre.torch.StorageWriter: {strange!r}")

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: List[LoadPlan]) -> List[LoadPlan]:
        return plans

    def _read_bytes(self, file: File, place: Place) -> io.BytesIO:
        text = bytearray(place.length)
        if text:
            read_all([Extent(file, text, place.offset, place.length)])
        return io.BytesIO(text)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> "Future[None]":
        files: Dict[str, File] = {}
        tensors: List[_Target] = []
        try:
            for item in plan.items:
                place = self._places[item.storage_index]
                file = files.get(place.file)
                if file is None:
                    file = files[place.file] = _files.open(os.path.join(self.path, place.file))
                if item.type == LoadItemType.BYTE_IO:
                    planner.load_bytes(item, self._read_bytes(file, place))
                else:
                    tensors.append(_Target(file, place, item, planner.resolve_tensor(item)))
            _read_tensors(tensors)
            for target in tensors:
                target.commit(planner)
        finally:
            for file in files.values():
                file.close()
        return _done(None)

    @property
    def load_id(self) -> str:
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Union[str, "os.PathLike[str]"]) -> bool:
        return _is_checkpoint_id(checkpoint_id) and os.path.exists(os.path.join(os.fspath(checkpoint_id), _METADATA))


class _Target:
    """A tensor that is loaded: its memory, or a copy's that goes there."""

    def __init__(self, file: File, place: Place, item: ReadItem, wanted: torch.Tensor) -> None:
        if place.shape is None or place.dtype is None:
            raise ValueError(f"{item.storage_index} was saved as bytes, not as a tensor")
        self.file, self.place, self.item, self.wanted = file, place, item, wanted
        dtype, lengths = getattr(torch, place.dtype), tuple(item.lengths)
        into = wanted.detach()
        if into.shape != item.lengths or into.dtype != dtype or not into.is_contiguous():
            into = torch.empty(lengths, dtype=dtype, device=into.device)
        self.memory = into

    def extents(self, memory: Any) -> Sequence[Extent]:
        assert self.place.shape is not None
        box = [(first, count, 1) for first, count in zip(self.item.storage_offsets, self.item.lengths)]
        rows = rows_of(self.place.shape, self.memory.element_size(), box)
        begin = self.place.offset
        return [Extent(self.file, memory, begin + part.offset, part.length, part.place, part.rows, part.stride) for part in rows]

    def commit(self, planner: LoadPlanner) -> None:
        into = self.wanted.detach()
        if self.memory.data_ptr() != into.data_ptr() or self.memory.dtype != into.dtype:
            into.copy_(self.memory.view(into.shape))
        planner.commit_tensor(self.item, self.wanted)


def _read_tensors(tensors: Sequence[_Target]) -> None:
    """All in as few requests as they need."""
    buffers = []
    try:
        extents: List[Extent] = []
        for target in tensors:
            if target.memory.numel() == 0:
                continue
            buffer = target.file.client.register(target.memory)
            buffers.append(buffer)
            extents.extend(target.extents(buffer))
        read_all(extents)
    finally:
        for buffer in buffers:
            buffer.release()
