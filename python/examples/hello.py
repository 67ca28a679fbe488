"""Writes a file and reads it, whole and in parts, into what has memory:   hello.py DIRECTORY-ON-A-MOUNT"""

import os
import sys

import numpy as np

import nacre

path = os.path.join(sys.argv[1], "hello")
with nacre.open(path, "wb") as file:
    file.write(np.arange(1_000_000, dtype=np.float32))
    file.sync()

with nacre.open(path) as file:
    array = np.empty(1000, np.float32)
    file.read_into(array, offset=4 * 5000)
    assert array[0] == 5000

    # Many places in one go; what is used often is registered once.
    with file.client.register(array) as buffer:
        results = nacre.readv(file.extent(buffer, 4 * 1000 * i, 400, memory_offset=400 * i) for i in range(10))
    assert list(array[::100]) == [1000 * i for i in range(10)]
    print(sum(result.bytes for result in results), "bytes over", results[0].path, "verified by", results[0].verified)

try:
    nacre.open(path + ".not-there")
except FileNotFoundError as error:
    print("refused:", error.strerror)
print("done")
