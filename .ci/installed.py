"""What somebody does first with a fresh install: `make dist` runs it outside the clone."""

import sys
from pathlib import Path

import timm
import torch

import zerotprune as ztp

place = Path(ztp.__file__)
assert Path(sys.prefix) in place.parents, f"imported from {place}, not from what was installed"
model = timm.create_model("test_vit", num_classes=5).eval()
ztp.prune_(model, cost=0.7)
with torch.inference_mode():
    logits = model(torch.randn(2, 3, 160, 160))
assert logits.shape == (2, 5)
assert logits.isfinite().all()
share = ztp.gmacs(model) / ztp.gmacs(model, ztp.Schedule())
assert abs(share - 0.7) < 0.01, share
print(f"zerotprune {ztp.__version__} on torch {torch.__version__}: {share:.0%} of the compute")
