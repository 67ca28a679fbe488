"""Reads a thousand pieces with asyncio:   many.py DIRECTORY-ON-A-MOUNT"""

import asyncio
import os
import sys

import nacre.aio


async def main(path: str) -> None:
    content = os.urandom(1_000_000)
    async with await nacre.aio.open(path, "wb") as file:
        await file.write(content)
    async with await nacre.aio.open(path) as file:
        pieces = [bytearray(1000) for _ in range(1000)]
        await asyncio.gather(*(file.read_into(piece, i * 1000) for i, piece in enumerate(pieces)))
    assert b"".join(pieces) == content


asyncio.run(main(os.path.join(sys.argv[1], "many")))
print("done")
