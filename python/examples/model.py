"""Saves a model, loads it, and a part of it:   model.py DIRECTORY-ON-A-MOUNT [cpu|cuda]

With PyTorch where it is installed, else with NumPy.
"""

import importlib.util
import os
import sys

from nacre.safetensors import load_file, safe_open, save_file

path = os.path.join(sys.argv[1], "model.safetensors")
device = sys.argv[2] if len(sys.argv) > 2 else "cpu"

if importlib.util.find_spec("torch"):
    import torch

    weights = {f"layer.{i}.weight": torch.randn(256, 512, device=device, dtype=torch.bfloat16) for i in range(8)}
else:
    import numpy as np

    weights = {f"layer.{i}.weight": np.random.default_rng(i).random((256, 512), np.float32) for i in range(8)}

save_file(weights, path, {"made by": "an example"})
loaded = load_file(path, device=device)
assert all((loaded[name] == weights[name]).all() for name in weights)

with safe_open(path, device=device) as file:
    half = file.get_slice("layer.3.weight")[:, :256]  # as one of two ranks would; the other half is not read
    assert (half == weights["layer.3.weight"][:, :256]).all()
    print(len(file.keys()), "tensors,", file.metadata())
print("done")
