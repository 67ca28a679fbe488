"""nacre._boxes against NumPy's indexing."""

import random
import unittest

import numpy as np

from nacre import _boxes


def carried_out(source, item, parts, size):
    """Returns the bytes that the parts would read."""
    read = bytearray(b"\xa5" * size)
    for part in parts:
        for row in range(part.rows):
            begin = part.offset + row * part.stride
            at = part.place + row * part.length
            assert begin + part.length <= len(source) and at + part.length <= size
            read[at : at + part.length] = source[begin : begin + part.length]
    return bytes(read)


class BoxesTest(unittest.TestCase):
    def check(self, array, box):
        expected = array[tuple(slice(first, first + (count - 1) * step + 1 if count else first, step) for first, count, step in box)]
        parts = list(_boxes.rows_of(array.shape, array.itemsize, box))
        self.assertEqual(carried_out(array.tobytes(), array.itemsize, parts, expected.nbytes), expected.tobytes())
        return parts

    def test_random_boxes(self):
        chosen = random.Random(1)
        for _ in range(3000):
            shape = [chosen.randint(1, 5) for _ in range(chosen.randint(0, 4))]
            array = np.arange(int(np.prod(shape)), dtype=chosen.choice([np.uint8, np.float32, np.float64])).reshape(shape)
            box = []
            for extent in shape:
                first, step = chosen.randrange(extent), chosen.randint(1, 3)
                box.append((first, chosen.randint(0, -(-(extent - first) // step)), step))
            self.check(array, box)

    def test_whole_dimensions_are_one_run(self):
        array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
        self.assertEqual(len(self.check(array, [(0, 2, 1), (0, 3, 1), (0, 4, 1)])), 1)
        self.assertEqual(self.check(array, [(1, 1, 1), (1, 2, 1), (0, 4, 1)]), [_boxes.Rows(16, 8, 1, 8, 0)])

    def test_columns_are_rows_of_one_extent(self):
        array = np.arange(1000, dtype=np.uint8).reshape(100, 10)
        self.assertEqual(len(self.check(array, [(0, 100, 1), (3, 2, 1)])), 1)

    def test_more_rows_than_an_extent_has(self):
        array = np.arange(7 * 2, dtype=np.uint8).reshape(7, 2)
        most, _boxes.MOST_ROWS = _boxes.MOST_ROWS, 3
        try:
            self.assertEqual(len(self.check(array, [(0, 7, 1), (1, 1, 1)])), 3)
        finally:
            _boxes.MOST_ROWS = most


if __name__ == "__main__":
    unittest.main()
