#!/usr/bin/env python3
"""extract_vmlinux.py BZIMAGE VMLINUX: the ELF kernel inside a compressed one, which QEMU boots directly (PVH) in half the time."""
import gzip
import lzma
import pathlib
import struct
import subprocess
import sys


def unpack(payload: bytes) -> bytes:
    if payload.startswith(b"\xfd7zXZ\0"):
        return lzma.LZMADecompressor().decompress(payload)  # behind it stands the unpacked size
    if payload.startswith(b"\x1f\x8b"):
        return gzip.decompress(payload[:-4])
    if payload.startswith(b"\x28\xb5\x2f\xfd"):
        return subprocess.run(["zstd", "-qdc"], input=payload, stdout=subprocess.PIPE, check=True).stdout
    sys.exit(f"a kernel packed in an unknown way: it begins with {payload[:8].hex()}")


def main() -> None:
    image = pathlib.Path(sys.argv[1]).read_bytes()
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)  # payload_offset, payload_length of the boot protocol
    start = (setup_sectors + 1) * 512 + offset
    kernel = unpack(image[start : start + length])
    if not kernel.startswith(b"\x7fELF"):
        sys.exit(f"{sys.argv[1]}: no ELF kernel inside")
    pathlib.Path(sys.argv[2]).write_bytes(kernel)


main()
