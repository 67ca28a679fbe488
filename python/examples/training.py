"""Goes through training data that is read ahead, two epochs:   training.py DIRECTORY-ON-A-MOUNT [cpu|cuda]"""

import os
import sys

import numpy as np

from nacre.torch import Loader, RecordDataset

path = os.path.join(sys.argv[1], "samples")
device = sys.argv[2] if len(sys.argv) > 2 else "cpu"
np.arange(5000 * 64, dtype=np.float32).tofile(path)

dataset = RecordDataset(path, shape=(64,), dtype="float32")
loader = Loader(dataset, batch_size=256, device=device, shuffle=True, seed=1)
for epoch in range(2):
    total = 0.0
    for batch in loader:  # (256, 64), on the device
        total += float(batch[:, 0].sum())
    assert total == 64 * sum(range(5000)), total
dataset.close()
print("done")
