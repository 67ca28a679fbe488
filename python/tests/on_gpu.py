#!/usr/bin/env python3
"""The Python package with real PyTorch on a real GPU. From a built tree or a directory of deploy/bundle, without a network:

    python3 python/tests/on_gpu.py [--size BYTES] [--keep]

Starts a filesystem of its own (`nacre local`, in memory where /dev/shm is), runs each check, prints what passed, how fast a
model of --size (1 GiB) is loaded, and one closing line. Exit status: 0 all passed; 1 something failed; 77 it cannot run
here, with the reason.
"""

import argparse
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(TOP, "python"))


def cannot(reason):
    print(f"on_gpu.py: SKIPPED: {reason}")
    sys.exit(77)


def first(*paths):
    return next((path for path in paths if os.path.exists(path)), None)


BIN = os.environ.get("NACRE_BIN") or first(os.path.join(TOP, "build", "bin"), os.path.join(TOP, "bin"))
LIBRARY = os.environ.get("NACRE_LIBRARY") or first(
    os.path.join(TOP, "build", "api", "libnacre.so.0"), os.path.join(TOP, "lib", "libnacre.so.0")
)
if BIN is None or LIBRARY is None:
    cannot(f"no build/bin/nacre or no build/api/libnacre.so.0 below {TOP}: build first")
os.environ["NACRE_LIBRARY"] = LIBRARY
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.join(TOP, "python"), os.environ.get("PYTHONPATH")]))
if os.path.isdir(os.path.join(TOP, "lib")):
    # The bundle's own libraries; the loader looks at this once, at the start of a process.
    there = os.environ.get("LD_LIBRARY_PATH", "")
    if os.path.join(TOP, "lib") not in there.split(":"):
        os.environ["LD_LIBRARY_PATH"] = os.path.join(TOP, "lib") + (":" + there if there else "")
        os.execv(sys.executable, [sys.executable, *sys.argv])

try:
    import torch
except ImportError as error:
    cannot(f"no PyTorch here ({error})")
if not torch.cuda.is_available():
    cannot("PyTorch sees no GPU here")

import nacre  # noqa: E402
import nacre.aio  # noqa: E402
import nacre.torch  # noqa: E402
from nacre import safetensors  # noqa: E402

CANARY = 0xA5
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool, torch.complex64]
DTYPES += [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]


class Mount:
    def __init__(self, keep):
        base = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self.work, self.keep = tempfile.mkdtemp(prefix="nacre-python-", dir=base), keep
        self.data, self.path = os.path.join(self.work, "fs"), os.path.join(self.work, "mnt")
        os.mkdir(self.path)
        command = [os.path.join(BIN, "nacre"), "local", "--dir", self.data, "--mount", self.path, "--osts", "4", "--daemon"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            shutil.rmtree(self.work, ignore_errors=True)
            cannot(f"`nacre local` does not start here: {done.stdout}{done.stderr}")

    def end(self):
        nacre.disconnect()
        subprocess.run([os.path.join(BIN, "nacre"), "stop", "--dir", self.data], capture_output=True, timeout=120)
        if not self.keep:
            shutil.rmtree(self.work, ignore_errors=True)


def made(path, size):
    content = torch.randint(0, 256, (size,), dtype=torch.uint8)
    with nacre.open(path, "wb") as file:
        file.write(content)
    return content


def as_bytes(tensor):
    return tensor.detach().contiguous().cpu().reshape(-1).view(torch.uint8)


# --- the checks: each takes a directory on the mount, and raises ---


def reads_into_tensors_and_touches_nothing_else(directory):
    content = made(directory + "/x", 4_000_000)
    with nacre.open(directory + "/x") as file:
        for dtype in DTYPES:
            whole = torch.full((1_000_000,), CANARY, dtype=torch.uint8, device="cuda")
            part = whole[4096 : 4096 + 320_000].view(dtype)
            assert file.read_into(part, 777) == 320_000
            expected = torch.full((1_000_000,), CANARY, dtype=torch.uint8)
            expected[4096 : 4096 + 320_000] = content[777 : 777 + 320_000]
            assert torch.equal(whole.cpu(), expected), dtype
        result = nacre.readv([file.extent(torch.empty(1000, device="cuda"))])[0]
        assert "gpu" in result.path or "staging" in result.path, result
        print(f"        {result.path}, verified by {result.verified}")


def writes_from_tensors(directory):
    for dtype in DTYPES:
        tensor = torch.randint(0, 2, (3_000_000,), device="cuda").to(dtype)
        with nacre.open(directory + "/w", "wb") as file:
            file.write(tensor)
            assert torch.equal(torch.frombuffer(bytearray(file_bytes(directory + "/w")), dtype=torch.uint8), as_bytes(tensor)), dtype


def file_bytes(path):
    with open(path, "rb") as file:
        return file.read()


def refuses_in_words(directory):
    made(directory + "/x", 100_000)
    square = torch.zeros(100, 100, device="cuda")
    bad = {
        "not contiguous": square[:, 3],
        "requires grad": torch.zeros(10, device="cuda", requires_grad=True),
        "conjugate": torch.zeros(10, dtype=torch.complex64, device="cuda").conj(),
        "layout": square.to_sparse(),
        "meta": torch.zeros(10, device="meta"),
    }
    with nacre.open(directory + "/x") as file:
        for words, tensor in bad.items():
            try:
                file.read_into(tensor)
            except nacre.UnusableMemory as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"not refused: {words}")
        buffer = file.client.register(square)
        buffer.release()
        try:
            file.read_into(buffer)
        except nacre.Error:
            pass
        else:
            raise AssertionError("a released buffer was read into")


def waits_for_what_is_queued(directory):
    """Memory that the allocator gives out again while kernels still use it is read into after them."""
    content = made(directory + "/x", 64 << 20)
    with nacre.open(directory + "/x") as file:
        for _ in range(5):
            old = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            busy = torch.randn(4096, 4096, device="cuda")
            for _ in range(20):
                busy = busy @ busy
            old.fill_(0x11)
            del old
            new = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
            file.read_into(new)
            torch.cuda.synchronize()
            assert torch.equal(new.cpu(), content)


def writes_come_after_what_is_queued(directory):
    """On the caller's current stream, whichever threads write."""
    import asyncio

    async def write(tensor):
        async with await nacre.aio.open(directory + "/w", "wb") as file:
            await file.write(tensor)

    stream = torch.cuda.Stream()
    for number, way in enumerate(("write", "aio", "save_file") * 2):
        with torch.cuda.stream(stream):
            busy = torch.randn(4096, 4096, device="cuda")
            tensor = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
            for _ in range(20):
                busy = busy @ busy
            tensor.fill_(number + 1)
            if way == "write":
                with nacre.open(directory + "/w", "wb") as file:
                    file.write(tensor)
            elif way == "aio":
                asyncio.run(write(tensor))
            else:
                safetensors.save_file({"x": tensor}, directory + "/w")
        assert file_bytes(directory + "/w")[-1 << 20 :] == bytes([number + 1]) * (1 << 20), way


def reads_in_the_order_of_a_stream(directory):
    content = made(directory + "/x", 16 << 20)
    with nacre.open(directory + "/x") as file:
        if not file.client.capabilities().streams:
            print("        this driver has no stream memory operations: nothing to check")
            return
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            tensor = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
            tensor.fill_(0x11).long().sum()  # loads the kernels: behind a read CUDA would wait for it with that
            read = nacre.submit([file.extent(tensor)], stream=stream)
            total = tensor.long().sum()
        stream.synchronize()
        assert read.result()[0].bytes == 16 << 20
        assert total.item() == content.long().sum().item()


def takes_dlpack_and_the_cuda_array_interface(directory):
    content = made(directory + "/x", 100_000)

    class OnlyDlpack:
        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack__(self, stream=None):
            return self.tensor.__dlpack__(stream=stream)

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

    class OnlyCuda:
        def __init__(self, tensor):
            self.__cuda_array_interface__ = tensor.__cuda_array_interface__

    with nacre.open(directory + "/x") as file:
        for hide in (OnlyDlpack, OnlyCuda):
            tensor = torch.zeros(25_000, device="cuda")
            assert file.read_into(hide(tensor)) == 100_000
            assert torch.equal(as_bytes(tensor), content), hide


def keeps_a_dropped_tensor(directory):
    content = made(directory + "/x", 32 << 20)
    with nacre.open(directory + "/x") as file:
        tensor = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        read = nacre.submit([file.extent(tensor)])
        address = tensor.data_ptr()
        del tensor
        gc.collect()
        other = torch.full((32 << 20,), CANARY, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        if not read.done():
            assert other.data_ptr() != address
        read.result()
        assert bool((other == CANARY).all())
        assert content.numel() == 32 << 20


def reads_with_asyncio(directory):
    import asyncio

    content = made(directory + "/x", 32 << 20)

    async def work():
        async with await nacre.aio.open(directory + "/x") as file:
            whole = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
            await asyncio.gather(*(file.read_into(part, i << 20) for i, part in enumerate(whole.split(1 << 20))))
            assert torch.equal(whole.cpu(), content)

    asyncio.run(work())


def model_of(size, device):
    weights, left, i = {}, size, 0
    while left > 0:
        count = min(left, 32 << 20) // 2
        weights[f"layer.{i}.weight"] = torch.randn(count, device=device).to(torch.bfloat16)
        weights[f"layer.{i}.bias"] = torch.randn(i % 7 + 1, device=device)
        left, i = left - 2 * count, i + 1
    return weights


def saves_and_loads_models(directory):
    weights = model_of(100 << 20, "cuda")
    weights.update({str(dtype): torch.ones(3, 0 if dtype == torch.int8 else 5, device="cuda").to(dtype) for dtype in DTYPES})
    weights["scalar"] = torch.tensor(2.5, device="cuda")
    path = directory + "/model.safetensors"
    safetensors.save_file(weights, path, {"a": "b"})
    for device in ("cuda", "cpu", 0):
        loaded = safetensors.load_file(path, device)
        assert loaded.keys() == weights.keys()
        for name, tensor in loaded.items():
            assert tensor.dtype == weights[name].dtype and tensor.shape == weights[name].shape, name
            assert torch.equal(as_bytes(tensor), as_bytes(weights[name])), name
    with safetensors.safe_open(path, device="cuda") as file:
        part = file.get_slice("layer.1.weight")[1000:2000:3]
        assert torch.equal(part, weights["layer.1.weight"][1000:2000:3])
    try:
        import safetensors as theirs
        from safetensors.torch import load_file, save_file
    except ImportError:
        print("        no package safetensors here: not compared with it")
        return
    assert theirs.__file__ != safetensors.__file__
    loaded = load_file(path)
    assert all(torch.equal(as_bytes(loaded[name]), as_bytes(tensor)) for name, tensor in weights.items())
    plain = {name: tensor.cpu() for name, tensor in weights.items()}
    save_file(plain, directory + "/theirs.safetensors", {"a": "b"})
    ours = safetensors.load_file(directory + "/theirs.safetensors", "cuda")
    assert all(torch.equal(as_bytes(ours[name]), as_bytes(tensor)) for name, tensor in weights.items())


def loads_training_data_ahead(directory):
    records = torch.randn(4096, 3, 64, 64)
    with nacre.open(directory + "/samples", "wb") as file:
        file.write(records)
    dataset = nacre.torch.RecordDataset(directory + "/samples", (3, 64, 64), torch.float32)
    seen, kept = [], []
    for batch in nacre.torch.Loader(dataset, 128, device="cuda", shuffle=True, seed=1, prefetch=4):
        assert batch.is_cuda and batch.shape == (128, 3, 64, 64)
        busy = batch.reshape(128, -1) @ batch.reshape(128, -1).T  # uses the batch after its name is gone
        for _ in range(30):
            busy = (busy @ busy).clamp(-1, 1)
        seen.append(batch.sum(dim=(1, 2, 3)))
        if len(kept) < 3:
            kept.append((batch, batch.clone()))
        del batch
    torch.cuda.synchronize()
    assert torch.allclose(torch.cat(seen).sort().values.cpu(), records.sum(dim=(1, 2, 3)).sort().values, atol=1e-2, rtol=1e-3)
    assert all(torch.equal(batch, copy) for batch, copy in kept), "a batch that was kept has changed"
    dataset.close()


def works_under_torchs_loader(directory):
    from torch.utils.data import DataLoader

    records = torch.arange(1000 * 16, dtype=torch.float32).reshape(1000, 16)
    with nacre.open(directory + "/samples", "wb") as file:
        file.write(records)
    dataset = nacre.torch.RecordDataset(directory + "/samples", (16,), torch.float32)
    for workers in (0, 2):
        context = {"multiprocessing_context": "spawn"} if workers else {}
        batches = list(DataLoader(dataset, batch_size=64, num_workers=workers, **context))
        assert torch.equal(torch.cat(batches), records), workers
    dataset.close()


def checkpoints_come_back(directory):
    import torch.distributed.checkpoint as dcp

    def state():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 8)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(4, 512, device="cuda")).sum().backward()
        optimizer.step()
        turned = torch.randn(100, 50, device="cuda").T
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()["state"], "step": 17, "turned": turned}

    saved = state()
    path = directory + "/checkpoint"
    dcp.save(saved, storage_writer=nacre.torch.StorageWriter(path), no_dist=True)
    fresh = state()
    for tensor in [*fresh["model"].values(), fresh["turned"]]:
        tensor.zero_()
    fresh["step"] = 0
    dcp.load(fresh, storage_reader=nacre.torch.StorageReader(path), no_dist=True)
    assert fresh["step"] == 17
    assert all(torch.equal(fresh["model"][name], tensor) for name, tensor in saved["model"].items())
    assert torch.equal(fresh["turned"], saved["turned"])
    assert not fresh["turned"].is_contiguous()
    other = {"turned": torch.zeros(50, 100, dtype=torch.float64)}  # another type, on the host
    dcp.load(other, storage_reader=nacre.torch.StorageReader(path), no_dist=True)
    assert torch.equal(other["turned"], saved["turned"].cpu().double())


RANK = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import nacre.torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
rank, world, rendezvous, path, act = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
whole = torch.arange(60 * 35, dtype=torch.float32).reshape(60, 35)
if act == "save":
    dcp.save({"w": distribute_tensor(whole, mesh, [Shard(0)])}, storage_writer=nacre.torch.StorageWriter(path))
else:
    state = {"w": distribute_tensor(torch.zeros(60, 35), mesh, [Shard(1)])}
    dcp.load(state, storage_reader=nacre.torch.StorageReader(path))
    assert torch.equal(state["w"].full_tensor(), whole)
dist.destroy_process_group()
"""


def checkpoints_are_resharded(directory):
    """Two processes save by rows, three load by columns."""
    for act, world in (("save", 2), ("load", 3)):
        rendezvous = os.path.join(tempfile.mkdtemp(), "rendezvous")
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", RANK, str(rank), str(world), rendezvous, directory + "/sharded", act],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            said = [rank.communicate(timeout=180)[0] for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
        assert all(rank.returncode == 0 for rank in ranks), said


TRAINING = """
import os, sys, torch, torch.distributed.checkpoint as dcp
import nacre.torch
samples, path, first, last = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)
model = torch.nn.Linear(64, 1).cuda()
dataset = nacre.torch.RecordDataset(samples, (65,), torch.float32)
loader = nacre.torch.Loader(dataset, 64, device="cuda", shuffle=True, seed=5)
loader.epoch = first
if first:
    state = {"model": model.state_dict()}
    dcp.load(state, storage_reader=nacre.torch.StorageReader(path), no_dist=True)
    model.load_state_dict(state["model"])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for epoch in range(first, last):
    for batch in loader:
        loss = torch.nn.functional.mse_loss(model(batch[:, :64]), batch[:, 64:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
dcp.save({"model": model.state_dict()}, storage_writer=nacre.torch.StorageWriter(path), no_dist=True)
print("weights", model.weight.detach().double().sum().item().hex())
"""


def training_goes_on_after_a_restart(directory):
    with nacre.open(directory + "/samples", "wb") as file:
        file.write(torch.randn(2048, 65))

    def train(path, begin, end):
        done = subprocess.run(
            [sys.executable, "-c", TRAINING, directory + "/samples", directory + path, str(begin), str(end)],
            capture_output=True, text=True, timeout=300, env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    straight = train("/straight", 0, 4)
    train("/parts", 0, 2)
    assert train("/parts", 2, 4) == straight


def a_silent_server_and_a_short_file_are_errors(directory):
    made(directory + "/x", 8 << 20)
    server = int(subprocess.run(["pgrep", "-f", f"local --dir {MOUNT.data}"], capture_output=True, text=True).stdout.split()[0])
    tensor = torch.full((8 << 20,), CANARY, dtype=torch.uint8, device="cuda")
    with nacre.open(directory + "/x") as file:
        file.read_into(tensor[:100])
        os.kill(server, signal.SIGSTOP)
        try:
            file.read_into(tensor, timeout=0.5)
        except nacre.TimedOut:
            pass
        else:
            raise AssertionError("no error from a server that stands still")
        finally:
            os.kill(server, signal.SIGCONT)
        tensor.fill_(CANARY)
        os.truncate(directory + "/x", 1000)
        assert file.read_into(tensor) == 1000
        assert bool((tensor[1000:] == CANARY).all())


def unit_tests(directory):
    command = [sys.executable, "-m", "unittest", "discover", "-t", ".", "-s", "tests"]
    done = subprocess.run(
        command, cwd=os.path.join(TOP, "python"), env={**os.environ, "NACRE_TEST_DIR": directory}, capture_output=True, text=True, timeout=400
    )
    print(f"        {' '.join(done.stderr.split()[-4:])}")
    assert done.returncode == 0, done.stderr


def examples(directory):
    for name in sorted(os.listdir(os.path.join(TOP, "python", "examples"))):
        on = ["cuda"] if name in ("model.py", "training.py") else []
        command = [sys.executable, os.path.join(TOP, "python", "examples", name), directory, *on]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and "done" in done.stdout, (name, done.stdout, done.stderr)


CHECKS = [
    reads_into_tensors_and_touches_nothing_else,
    writes_from_tensors,
    refuses_in_words,
    waits_for_what_is_queued,
    writes_come_after_what_is_queued,
    reads_in_the_order_of_a_stream,
    takes_dlpack_and_the_cuda_array_interface,
    keeps_a_dropped_tensor,
    reads_with_asyncio,
    saves_and_loads_models,
    loads_training_data_ahead,
    works_under_torchs_loader,
    checkpoints_come_back,
    checkpoints_are_resharded,
    training_goes_on_after_a_restart,
    examples,
    unit_tests,
    a_silent_server_and_a_short_file_are_errors,
]


# --- how fast ---


def ceiling(size):
    """A copy from pinned memory to the GPU, GB/s; median of three."""
    source, target = torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.empty(size, dtype=torch.uint8, device="cuda")
    rates = []
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        rates.append(size / (time.perf_counter() - begin) / 1e9)
    return sorted(rates)[1]


def speed(directory, size):
    path = directory + "/model.safetensors"
    begin = time.perf_counter()
    weights = model_of(size, "cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    safetensors.save_file(weights, path)
    saved = size / (time.perf_counter() - begin) / 1e9
    del weights
    rates = []
    for _ in range(4):
        torch.cuda.empty_cache()
        begin = time.perf_counter()
        loaded = safetensors.load_file(path, "cuda")
        rates.append(size / (time.perf_counter() - begin) / 1e9)
        del loaded
    best = ceiling(min(size, 1 << 30))
    print(f"  model of {size / 2**30:.2f} GiB: saved durably {saved:.1f} GB/s; loaded, verified: first {rates[0]:.1f} GB/s, "
          f"then {sorted(rates[1:])[1]:.1f} GB/s (median of three); pinned copy {best:.1f} GB/s")  # fmt: skip


def main():
    global MOUNT
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1 << 30)
    parser.add_argument("--keep", action="store_true", help="leave the filesystem's directory behind")
    given = parser.parse_args()
    MOUNT = Mount(given.keep)
    failed = []
    print(f"nacre {nacre.library_version()}, torch {torch.__version__}, {torch.cuda.get_device_name(0)}")
    try:
        for check in CHECKS:
            directory = os.path.join(MOUNT.path, check.__name__)
            os.mkdir(directory)
            begin = time.monotonic()
            try:
                check(directory)
            except Exception:
                failed.append(check.__name__)
                traceback.print_exc(file=sys.stdout)
            word = "FAILED" if check.__name__ in failed else "ok"
            print(f"  {word:>6}  {check.__name__.replace('_', ' ')} ({time.monotonic() - begin:.1f} s)", flush=True)
            shutil.rmtree(directory, ignore_errors=True)
        speed(MOUNT.path, given.size)
    finally:
        MOUNT.end()
    print(f"on_gpu.py: {len(CHECKS) - len(failed)} passed, {len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
