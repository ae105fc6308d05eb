"""Settings shared by the library's tests: deterministic properties, one thread."""

import torch
from hypothesis import settings

settings.register_profile("library", deadline=None, derandomize=True, max_examples=150)
settings.load_profile("library")
torch.set_num_threads(1)
