"""Cases given by their scores: the right weights, and those of every path of the library."""

import math

import numpy as np
import torch

import attention_scaling as scaling

CHUNKS = (1, 2, 3, 128)


def softmax(logits, sink=-math.inf):
    """Weights of one row in float64; the sink takes part in the denominator only."""
    top = max(*logits, sink)
    if top == -math.inf:
        return np.zeros(len(logits))
    total = math.fsum(math.exp(z - top) for z in (*logits, sink))
    return np.array([math.exp(z - top) / total for z in logits])


def paths(query, key, dtype=torch.float64, **options):
    """The weights of one query by each path: the front door, both ways written out, all chunks.

    Values are the unit vectors, so that the output is the weights.
    """
    q = torch.as_tensor(query, dtype=dtype).reshape(1, 1, 1, -1)
    k = torch.as_tensor(key, dtype=dtype)[None, None]
    v = torch.eye(k.shape[-2], dtype=dtype)[None, None]
    if "attn_mask" in options:
        options["attn_mask"] = torch.as_tensor(options["attn_mask"])
    outputs = {
        "front": scaling.scaled_dot_product_attention(q, k, v, **options),
        "explicit": scaling.explicit_attention(q, k, v, **options),
    }
    outputs["weights"] = scaling.scaled_dot_product_attention(
        q, k, v, return_weights=True, **options
    )[1]
    for size in CHUNKS:
        outputs[f"online {size}"] = scaling.online_attention(q, k, v, chunk_size=size, **options)
    return {name: out.double().flatten().numpy() for name, out in outputs.items()}


def assert_weights(query, key, expected, *, dtype=torch.float64, tolerance=1e-13, **options):
    """All paths give the expected weights."""
    for name, found in paths(query, key, dtype, **options).items():
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance, err_msg=name)


def two_keys(raw, dim):
    """A query and two keys with the raw scores `raw` and 0, in `dim` features."""
    query = np.eye(dim)[0]
    return query, np.stack([raw * query, 0 * query])


def by_scores(raw):
    """A query and keys of one feature, so that the raw scores are the keys."""
    return np.ones(1), np.asarray(raw, dtype=float)[:, None]
