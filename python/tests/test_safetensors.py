"""nacre.safetensors: files that are whole, slices, hostile headers."""

import errno
import importlib.util
import json
import os
import struct
import unittest
from unittest import mock

import numpy as np

import nacre
from nacre import safetensors
from nacre.safetensors import SafetensorError, load_file, safe_open, save_file

from .support import OnMount, names_watched


def packed(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(dtype="U8", shape=(4,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def nested(depth):
    return b'{"a":' + b"[" * depth + b"]" * depth + b"}"


#: A header, how many bytes follow it, and the words of the error.
HOSTILE = [
    (b"", 0, "does not begin with"),
    (b"[]", 0, "does not begin with"),
    (b' {"a":1}', 0, "does not begin with"),
    (b'{"a":', 0, "no JSON"),
    (b'{"a":1}x', 0, "no JSON"),
    (b'{"\xff":1}', 0, "no JSON"),
    (nested(100_000), 0, "no JSON"),
    (b'{"a":' + b"9" * 5000 + b"}", 0, "no JSON"),
    (b'{"a":1,"a":2}', 0, "'a' twice"),
    ({"a": 1}, 0, "'a' does not have dtype"),
    ({"a": {"dtype": "U8", "shape": [4]}}, 4, "'a' does not have dtype"),
    ({"a": {**tensor(), "more": 1}}, 4, "'a' does not have dtype"),
    ({"a": tensor("U7")}, 4, "type 'U7'"),
    ({"a": tensor([])}, 4, "type \\[\\]"),
    ({"a": tensor(shape=[-4])}, 4, "shape"),
    ({"a": tensor(shape=[4.0])}, 4, "shape"),
    ({"a": tensor(shape=[True])}, 4, "shape"),
    ({"a": {**tensor(), "shape": 4}}, 4, "shape"),
    ({"a": tensor(shape=[1 << 62, 1 << 62])}, 4, "has 4 bytes, not"),
    ({"a": tensor(shape=[1 << 70])}, 4, "shape"),
    ({"a": tensor(offsets=[0])}, 4, "data_offsets"),
    ({"a": tensor(offsets=[0, -4])}, 4, "data_offsets"),
    ({"a": tensor(offsets=["0", "4"])}, 4, "data_offsets"),
    ({"a": tensor(offsets=[4, 0])}, 4, "at 4 to 0 of the 4"),
    ({"a": tensor(shape=[8], offsets=[0, 8])}, 4, "at 0 to 8 of the 4"),
    ({"a": tensor(shape=[3])}, 4, "has 4 bytes, not 3"),
    ({"a": tensor("F32", [2])}, 4, "has 4 bytes, not 8"),
    ({"a": tensor(), "b": tensor(offsets=[2, 6])}, 6, "'a' and 'b' overlap"),
    ({"a": tensor(), "b": tensor()}, 4, "overlap"),
    ({"a": tensor(), "b": tensor(offsets=[5, 9])}, 9, "1 bytes before tensor 'b'"),
    ({"a": tensor(offsets=[1, 5])}, 5, "1 bytes before tensor 'a'"),
    ({"a": tensor()}, 9, "5 bytes behind the last"),
    ({}, 1, "1 bytes behind the last"),
    ({"__metadata__": {"a": 1}}, 0, "__metadata__"),
    ({"__metadata__": "a"}, 0, "__metadata__"),
]


class HeaderTest(unittest.TestCase):
    def test_hostile_ones_are_refused_in_words(self):
        for header, following, words in HOSTILE:
            text = header if isinstance(header, bytes) else json.dumps(header).encode()
            with self.subTest(text[:60]), self.assertRaisesRegex(SafetensorError, words):
                safetensors.parse_header(text, 8 + len(text) + following)

    def test_any_damage_is_refused_or_read_rightly(self):
        header = json.dumps({"__metadata__": {"k": "v"}, "a": tensor(), "b": tensor("F32", [2, 2], [4, 20])}).encode()
        for i in range(len(header)):
            for other in (0, 0x20, 0x22, 0x30, 0x39, 0x2C, 0x5D, 0x7D, 0xFF):
                damaged = header[:i] + bytes([other]) + header[i + 1 :]
                try:
                    found = safetensors.parse_header(damaged, 8 + len(header) + 20)
                except SafetensorError:
                    continue
                reached = 8 + len(header)
                for one in found.tensors.values():
                    self.assertEqual(one.begin, reached)
                    reached = one.end
                self.assertEqual(reached, 8 + len(header) + 20)

    def test_good_ones(self):
        text = json.dumps({"b": tensor(offsets=[0, 4]), "a": tensor("F64", [], [4, 12]), "e": tensor("F32", [0, 7], [4, 4])}).encode() + b"  "
        found = safetensors.parse_header(text, 8 + len(text) + 12)
        self.assertEqual(list(found.tensors), ["b", "e", "a"])
        self.assertEqual(found.tensors["a"], (("F64"), (), 8 + len(text) + 4, 8 + len(text) + 12))
        self.assertIsNone(found.metadata)
        self.assertEqual(safetensors.parse_header(b"{}", 10).tensors, {})


class PlacesTest(unittest.TestCase):
    def place(self, *sizes):
        reached, infos = 100, {}
        for i, size in enumerate(sizes):
            infos[str(i)] = safetensors.TensorInfo("U8", (size,), reached, reached + size)
            reached += size
        return safetensors._place(infos)

    def test_what_stays_aligned_is_one_run(self):
        self.assertEqual(self.place(128, 64, 0, 100), ({"0": 0, "1": 128, "2": 192, "3": 192}, [(100, 0, 292)], 292))

    def test_what_would_not_begins_a_new_one(self):
        self.assertEqual(self.place(3, 64), ({"0": 0, "1": 64}, [(100, 0, 3), (103, 64, 64)], 128))

    def test_nothing(self):
        self.assertEqual(self.place(), ({}, [], 0))
        self.assertEqual(self.place(0), ({"0": 0}, [], 0))


class SafetensorsTest(OnMount):
    def setUp(self):
        super().setUp()
        made = np.random.default_rng(1)
        self.tensors = {
            "a": made.random((17, 33, 5)).astype(np.float32),
            "odd": made.integers(0, 255, 3, dtype=np.uint8),
            "big": made.random((500, 700)),
            "empty": np.zeros((0, 4), np.float16),
            "one": np.asarray(3.5, np.float32),
            "turned": made.random((10, 20)).T,
            "swapped": np.arange(5, dtype=">i4"),
            "flags": np.array([True, False]),
            "ü\n": np.arange(4, dtype=np.complex64),
        }
        self.model = self.path("model.safetensors")
        save_file(self.tensors, self.model, {"format": "np", "ключ": "значение"})

    def same(self, loaded, expected):
        self.assertEqual(loaded.shape, expected.shape)
        self.assertEqual(loaded.dtype, expected.dtype.newbyteorder("="))
        np.testing.assert_array_equal(loaded, expected)

    def test_what_was_saved_is_loaded(self):
        loaded = load_file(self.model, framework="np")
        self.assertEqual(set(loaded), set(self.tensors))
        for name, expected in self.tensors.items():
            self.same(loaded[name], expected)
            self.assertEqual(loaded[name].ctypes.data % loaded[name].itemsize, 0)
            loaded[name][...] = 0  # writable

    def test_the_file_is_as_the_format_says(self):
        content = self.content("model.safetensors")
        (length,) = struct.unpack_from("<Q", content)
        self.assertEqual(length % 8, 0)
        header = json.loads(content[8 : 8 + length])
        self.assertEqual(header["__metadata__"], {"format": "np", "ключ": "значение"})
        for name, expected in self.tensors.items():
            begin, end = header[name]["data_offsets"]
            self.assertEqual(content[8 + length + begin : 8 + length + end], np.ascontiguousarray(expected).astype(expected.dtype.newbyteorder("<")).tobytes())
        self.assertEqual(header["a"]["dtype"], "F32")

    def test_one_tensor_and_several(self):
        with safe_open(self.model, "np") as file:
            self.assertEqual(file.keys(), sorted(self.tensors))
            self.assertEqual(file.metadata()["format"], "np")
            self.same(file.get_tensor("big"), self.tensors["big"])
            some = file.get_tensors(["one", "a"])
            self.same(some["one"], self.tensors["one"])
            self.same(some["a"], self.tensors["a"])
            with self.assertRaisesRegex(SafetensorError, "no tensor 'b'"):
                file.get_tensor("b")

    def test_slices(self):
        whole = self.tensors["a"]
        with safe_open(self.model, "np") as file:
            part = file.get_slice("a")
            self.assertEqual((part.get_shape(), part.get_dtype()), ([17, 33, 5], "F32"))
            for index in (
                np.s_[:], np.s_[3], np.s_[-1], np.s_[3:9, ::4], np.s_[..., 2], np.s_[1, 2, 3], np.s_[::5, 3:7, 1:4], np.s_[2:2],
                np.s_[::3, ::2, ::2], np.s_[:, ..., 1:], np.s_[100:], np.s_[np.int64(2), 5:], np.s_[...], np.s_[0:1, :, 3],
            ):  # fmt: skip
                with self.subTest(index):
                    self.same(part[index], whole[index])
            self.same(file.get_slice("one")[...], self.tensors["one"])
            for index, error in ((17, IndexError), ((0, 0, 0, 0), IndexError), (np.s_[::-1], ValueError), ("x", TypeError), ((..., ...), IndexError)):
                with self.assertRaises(error):
                    part[index]

    def test_a_slice_reads_what_it_needs(self):
        """One column of a big matrix is a strided extent, not the matrix."""
        with safe_open(self.model, "np") as file:
            from nacre import _submit

            asked = []
            submit, _submit.submit = _submit.submit, lambda extents, **named: asked.extend(extents) or submit(extents, **named)
            try:
                file.get_slice("big")[:, 3]
            finally:
                _submit.submit = submit
        self.assertEqual(sum(extent.length * extent.rows for extent in asked), 500 * 8)
        self.assertEqual(len(asked), 1)

    def test_saving_replaces_the_file_as_a_whole(self):
        with self.assertRaisesRegex(TypeError, "tensor 'x'"):
            save_file({"x": np.array(["text"])}, self.model)
        with self.assertRaises(SafetensorError):
            save_file({"__metadata__": np.zeros(1)}, self.model)
        self.same(load_file(self.model, framework="np")["a"], self.tensors["a"])
        save_file({"x": np.arange(3)}, self.model)
        self.assertEqual(list(load_file(self.model, framework="np")), ["x"])
        self.assertEqual(os.listdir(self.directory), ["model.safetensors"])

    def test_the_name_of_a_saved_file_lasts(self):
        with names_watched() as seen:
            save_file({"x": np.arange(3)}, self.model)
        self.assertEqual(seen, [("replace", self.model), ("fsync", self.directory)])
        with names_watched() as seen:
            save_file({"x": np.arange(3)}, self.model, sync=False)
        self.assertEqual(seen, [("replace", self.model)])

    def test_a_name_that_may_not_last_is_an_error(self):
        with mock.patch("os.fsync", side_effect=OSError(errno.EIO, "lost")):
            with self.assertRaisesRegex(nacre.Error, f"{self.directory}: its names are not durable: lost"):
                save_file({"x": np.arange(3)}, self.model)
        self.assertEqual(list(load_file(self.model, framework="np")), ["x"])
        self.assertEqual(os.listdir(self.directory), ["model.safetensors"])

    def test_nothing_to_save(self):
        save_file({}, self.model)
        self.assertEqual(load_file(self.model, framework="np"), {})

    def test_files_that_are_none(self):
        cases = [
            (b"", "has 0 bytes"),
            (b"1234567", "has 7 bytes"),
            (packed({}, length=1 << 60), "said to have"),
            (packed({}, length=100_000_001), "100000000 are the most"),
            (packed({}, length=3), "the file has 10"),
            (packed({"a": tensor()}, b"123"), "at 0 to 4 of the 3"),
        ]
        for content, words in cases:
            path = self.make("bad", content)
            with self.subTest(words), self.assertRaisesRegex(SafetensorError, "bad is no safetensors file: .*" + words):
                load_file(path, framework="np")
            with self.assertRaises(SafetensorError):
                safe_open(path, "np")

    def test_a_long_header(self):
        many = {f"tensor-{i:06}": np.full(1, i, np.int32) for i in range(8000)}  # more than the first read takes
        save_file(many, self.model)
        loaded = load_file(self.model, framework="np")
        self.assertTrue(all(loaded[name][0] == value[0] for name, value in many.items()))

    def test_a_file_that_is_cut_short_meanwhile(self):
        with safe_open(self.model, "np") as file:
            os.truncate(self.model, os.path.getsize(self.model) // 2)
            with self.assertRaisesRegex(nacre.Error, "become shorter"):
                file.get_tensors(file.keys())

    def test_what_numpy_lacks(self):
        path = self.make("bf16", packed({"a": tensor("BF16", [2])}, b"1234"))
        if importlib.util.find_spec("ml_dtypes") is None:
            with self.assertRaisesRegex(TypeError, "NumPy has no BF16"):
                load_file(path, framework="np")
        with self.assertRaisesRegex(ValueError, "arrays are on the 'cpu'"):
            load_file(self.model, "cuda", framework="np")
        with self.assertRaisesRegex(ValueError, "framework 'tf'"):
            load_file(self.model, framework="tf")


if __name__ == "__main__":
    unittest.main()
