"""What a probe should report, in NumPy and float64, from whole matrices of logits."""

import numpy as np


def expected(dots, *, scale, keep=None, bias=0.0, softcap=None, sinks=None):
    """Statistics per head of the products ``dots``, (B, H, L, S), as lists.

    ``scale`` and ``sinks`` are numbers, or one for each head.
    """
    dots = np.asarray(dots, dtype=np.float64)
    heads = dots.shape[1]
    scale = np.broadcast_to(np.asarray(scale, dtype=np.float64), heads)
    keep = np.broadcast_to(True if keep is None else keep, dots.shape)
    z = dots * scale[:, None, None]
    if softcap is not None:
        z = softcap * np.tanh(z / softcap)
    z = z + bias
    found = []
    for h in range(heads):
        pairs, raw = z[:, h][keep[:, h]], dots[:, h][keep[:, h]]
        rows = []
        for logits, seen in zip(
            z[:, h].reshape(-1, z.shape[-1]), keep[:, h].reshape(-1, z.shape[-1]), strict=True
        ):
            row = logits[seen]
            if row.size:
                e = np.exp(row - row.max())
                p = e / e.sum()
                entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
                sink = 0.0
                if sinks is not None:
                    s = np.broadcast_to(sinks, heads)[h]
                    sink = 1 / (1 + np.exp(row.max() - s) * e.sum())
                top = p.max() * (1 - sink)
                rows.append((row.size, entropy, np.exp(entropy), top, sink))
        keys, entropies, effective, top, sink = np.array(rows).T
        found.append(
            {
                "scale": scale[h],
                "logit_mean": pairs.mean(),
                "logit_std": pairs.std(),
                "max_abs_logit": np.abs(pairs).max(),
                "dot_mean": raw.mean(),
                "dot_std": raw.std(),
                "max_abs_dot": np.abs(dots[:, h]).max(),
                "fp16_share": np.abs(dots[:, h]).max() / 65504,
                "fp16_share_scaled": np.abs(scale[h] * dots[:, h]).max() / 65504,
                "entropy": entropies.mean(),
                "effective_keys": effective.mean(),
                "keys": keys.mean(),
                "top_weight": top.mean(),
                "max_weight": top.max(),
                "sink_weight": sink.mean(),
                "pairs": int(keep[:, h].sum()),
                "rows": len(rows),
                "rows_without_keys": int((~keep[:, h].any(axis=-1)).sum()),
                "nonfinite": 0,
            }
        )
    return found


def assert_heads(record, wanted, tolerance):
    """Each statistic within `tolerance`, absolute and relative."""
    assert len(record.heads) == len(wanted)
    for head, numbers in zip(record.heads, wanted, strict=True):
        for name, value in numbers.items():
            got = getattr(head, name)
            assert abs(got - value) <= tolerance * max(1.0, abs(value)), (
                f"{record.name} head {head.head}: {name} is {got!r}, expected {value!r}"
            )
