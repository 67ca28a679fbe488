"""Records of equal size in files: a map-style dataset, and a loader that reads batches ahead into GPU memory."""

from __future__ import annotations

import bisect
import errno
import itertools
import os
import random
import threading
from collections import deque
from contextlib import nullcontext
from typing import Any, Deque, Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

from .. import _files, errors
from .._files import Client, File, Path
from .._frameworks import SIZES, Framework, bytes_of, framework
from .._reads import Read
from .._submit import Extent, submit, wait
from .._transfer import read_all, wanted

_FORMAT_NAMES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "float16": "F16", "bfloat16": "BF16",
    "uint32": "U32", "int32": "I32", "float32": "F32", "uint64": "U64", "int64": "I64", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


def _format_name(dtype: Any) -> str:
    """From "float32", torch.float32, numpy.float32 or "F32" to "F32"."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", None) or str(dtype)
    name = name.rpartition(".")[2]
    name = _FORMAT_NAMES.get(name, name)
    if name not in SIZES:
        raise TypeError(f"dtype {dtype!r} is not known: one of {', '.join(_FORMAT_NAMES)}")
    return name


class RecordDataset:
    """Records of one shape and type that lie one behind the other in files on a Nacre mount.

    A map-style dataset, for torch.utils.data.DataLoader or for `Loader`: `dataset[i]`, `dataset.__getitems__(indices)`
    (which is one request for all of them), `len(dataset)`.

    paths: of one or several files, in whose order records are counted. shape: of a record; () is one number. dtype: of
    PyTorch, of NumPy, or a name ("float32"). header: bytes at the beginning of each file that are no records.
    What is left at the end of a file and is no whole record is refused. framework: as of nacre.safetensors.

    The files are opened by the first read in each process: it can be sent to the workers of a DataLoader. These must be
    spawned, or forked before the parent has read anything through libnacre.
    """

    def __init__(
        self,
        paths: Union[Path, Sequence[Path]],
        shape: Sequence[int],
        dtype: Any,
        *,
        header: int = 0,
        framework: Optional[str] = None,
    ) -> None:
        several = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else list(paths)
        self.paths = [os.fsdecode(path) for path in several]
        self.shape, self.dtype, self.header = tuple(shape), _format_name(dtype), header
        self.framework = framework
        #: Bytes of a record.
        self.record_bytes = bytes_of(self.shape, self.dtype)
        if self.record_bytes <= 0:
            raise ValueError(f"records of {self.shape} have no bytes")
        #: How many records come before each file's, and at the end how many there are.
        self._before = [0, *itertools.accumulate(self._count(path) for path in self.paths)]
        self._opened: Dict[int, List[File]] = {}  # by process
        self._lock = threading.Lock()

    def _count(self, path: str) -> int:
        size = os.stat(path).st_size - self.header
        if size < 0 or size % self.record_bytes:
            raise ValueError(
                f"{path}: {size} bytes behind a header of {self.header}: no whole records of {self.record_bytes} bytes"
            )
        return size // self.record_bytes

    def __len__(self) -> int:
        return self._before[-1]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_opened": {}, "_lock": None}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def files(self) -> List[File]:
        """Opened by this process."""
        with self._lock:
            opened = self._opened.get(os.getpid())
            if opened is None:
                opened = self._opened[os.getpid()] = [_files.open(path) for path in self.paths]
            return opened

    def close(self) -> None:
        with self._lock:
            opened = self._opened.pop(os.getpid(), [])
        for file in opened:
            file.close()

    def client(self) -> Client:
        return self.files()[0].client

    def place(self, index: int) -> Tuple[int, int]:
        """The number of its file, and the offset there."""
        index = index.__index__()
        count = len(self)
        if not -count <= index < count:
            raise IndexError(f"record {index} of {count}")
        index %= count
        number = bisect.bisect_right(self._before, index) - 1
        return number, self.header + (index - self._before[number]) * self.record_bytes

    def extents(self, indices: Iterable[int], memory: Any) -> List[Extent]:
        """Returns extents that read these records one after the other into memory. Neighbours become one extent."""
        made: List[Extent] = []
        files, end = self.files(), 0
        for index in indices:
            number, offset = self.place(index)
            last = made[-1] if made else None
            if last is not None and last.file is files[number] and last.offset + wanted(last) == offset:
                made[-1] = last._replace(length=wanted(last) + self.record_bytes)
            else:
                made.append(Extent(files[number], memory, offset, self.record_bytes, end))
            end += self.record_bytes
        return made

    def view(self, its: Framework, flat: Any, count: int) -> Any:
        """`count` records in flat bytes as one tensor."""
        return its.view(flat, 0, self.dtype, (count, *self.shape))

    def __getitems__(self, indices: Sequence[int]) -> List[Any]:
        if not len(indices):
            return []
        its = framework(self.framework)
        flat = its.allocate(len(indices) * self.record_bytes, "cpu")
        with self.client().register(flat) as buffer:
            read_all(self.extents(indices, buffer))
        return list(self.view(its, flat, len(indices)))

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]


class _Batch(NamedTuple):
    tensor: Any
    read: Read
    extents: List[Extent]


class Loader:
    """Batches of a RecordDataset, read ahead into the memory of a GPU (or the host).

    for batch in Loader(dataset, 256, device="cuda", shuffle=True): ...

    Each batch is a tensor of its own of (batch, *shape), on `device`, which may be kept. `prefetch`: batches that are
    under way while one is used; each is one vectored read. shuffle: anew in each epoch, from `seed` and the epoch's
    number. rank, world: this process takes each world-th batch; all have the same number of batches. drop_last: no
    batch smaller than the others (always so with world > 1). Iterated by one thread at a time.

    On a GPU the memory comes from a stream of the loader's own, in which nothing else is ever queued, and is marked as
    used by the stream that is current when the batch is given out; batches that other streams use need record_stream(),
    as always with PyTorch.

    A file that was cut short, a dead server (nacre.Client(soft=True)) or a bad checksum is a nacre.Error that the loop raises.
    """

    def __init__(
        self,
        dataset: RecordDataset,
        batch_size: int,
        *,
        device: Any = "cuda",
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = False,
        prefetch: int = 2,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch_size < 1 or prefetch < 1:
            raise ValueError(f"batch_size {batch_size} and prefetch {prefetch} have to be 1 or more")
        if not 0 <= rank < world:
            raise ValueError(f"rank {rank} of {world}")
        self.dataset, self.batch_size, self.device = dataset, batch_size, device
        self.shuffle, self.seed, self.prefetch = shuffle, seed, prefetch
        self.rank, self.world, self.drop_last = rank, world, drop_last or world > 1
        #: The number of the epoch that begins next; set it to go on in the middle of a training.
        self.epoch = 0
        self._framework = framework(dataset.framework)
        self._stream: Any = None

    def __len__(self) -> int:
        count = len(self.dataset)
        batches = count // self.batch_size if self.drop_last else -(-count // self.batch_size)
        return batches // self.world

    def batches(self, epoch: int) -> Iterator[List[int]]:
        """The indices of this rank's batches."""
        order = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(f"{self.seed} {epoch}").shuffle(order)
        for number in range(len(self)):
            begin = (number * self.world + self.rank) * self.batch_size
            yield order[begin : begin + self.batch_size]

    def _own_stream(self) -> Any:
        """Where memory is taken from: a stream without work of its own, or nothing on the host."""
        if self._framework.name != "torch":
            return nullcontext()
        import torch

        if torch.device(f"cuda:{self.device}" if isinstance(self.device, int) else self.device).type != "cuda":
            return nullcontext()
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.device)
        return torch.cuda.stream(self._stream)

    def _begin(self, indices: List[int]) -> _Batch:
        with self._own_stream():
            flat = self._framework.allocate(len(indices) * self.dataset.record_bytes, self.device)
            extents = self.dataset.extents(indices, flat)
            # The previous use of this memory is over when the stream is empty. With PyTorch's own allocator it always is;
            # with cudaMallocAsync the stream waits for that use, and `submit` for the stream.
            read = submit(extents)
        return _Batch(self.dataset.view(self._framework, flat, len(indices)), read, extents)

    def _finish(self, batch: _Batch) -> Any:
        for extent, result in zip(batch.extents, wait(batch.read, True)):
            if result.bytes != wanted(extent):
                raise errors.make(
                    errno.EIO, f"{extent.file.name}: {result.bytes} bytes at {extent.offset} instead of {extent.length}: it has become shorter"
                )
        if self._stream is not None:
            import torch

            batch.tensor.record_stream(torch.cuda.current_stream(batch.tensor.device))
        return batch.tensor

    def __iter__(self) -> Iterator[Any]:
        todo = self.batches(self.epoch)
        self.epoch += 1
        ahead: Deque[_Batch] = deque()
        try:
            for indices in itertools.islice(todo, self.prefetch):
                ahead.append(self._begin(indices))
            while ahead:
                batch = ahead.popleft()
                tensor = self._finish(batch)
                del batch  # the caller alone decides how long it is kept
                for indices in itertools.islice(todo, 1):
                    ahead.append(self._begin(indices))
                yield tensor
                del tensor
        finally:
            for batch in ahead:
                batch.read.cancel()
            for batch in ahead:
                batch.read.wait()
