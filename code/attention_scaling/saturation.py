"""When softmax saturates: the spread of the logits against √(2 ln n)."""

from __future__ import annotations

import math

from attention_scaling import _checks

__all__ = ["random_energy_entropy", "saturation_ratio", "saturation_threshold"]


def saturation_threshold(n_keys: int) -> float:
    r"""Logit spread :math:`\sigma_c = \sqrt{2 \ln n}` above which softmax condenses.

    For n independent normal logits of standard deviation σ, as n grows, the weight sits on a
    number of keys that stays bounded when σ > σ_c and spreads over ever more keys when σ < σ_c.
    At practical n this is a crossover, not a step. σ_c is also the leading term of the expected
    maximum of n standard normals.

    Parameters
    ----------
    n_keys : int
        Number of keys in the row, at least 1.

    Returns
    -------
    float
        In the unit of the logits (none).

    Raises
    ------
    ValueError
        If `n_keys` is no positive integer.

    References
    ----------
    Derrida (1981), the random-energy model: σ_c is its freezing point.
    """
    return math.sqrt(2.0 * math.log(_checks.positive_int("n_keys", n_keys)))


def saturation_ratio(logit_std: float, n_keys: int) -> float:
    r"""Spread of the logits in units of the threshold: :math:`\sigma / \sqrt{2 \ln n}`.

    Above 1 softmax condenses on few keys, below 1 it spreads over many, with a crossover around 1
    that sharpens slowly as n grows.

    Parameters
    ----------
    logit_std : float
        σ, the standard deviation of the scaled logits in a row; not negative.
    n_keys : int
        Number of keys in the row, at least 2: a single key has no threshold.

    Returns
    -------
    float
        No unit.

    Raises
    ------
    ValueError
        If `logit_std` is negative or not finite, or `n_keys` is below 2.
    """
    logit_std = _checks.non_negative_number("logit_std", logit_std)
    return logit_std / saturation_threshold(_checks.positive_int("n_keys", n_keys, minimum=2))


def random_energy_entropy(logit_std: float, n_keys: int) -> float:
    r"""Entropy of attention over n random keys, to leading order in ln n.

    .. math:: H \approx \max(0,\; \ln n - \sigma^2/2)

    For independent normal logits, as n grows at a fixed ratio σ/σ_c. Far below the threshold it is
    close at any n (at σ = 1 and n = 1024 within 0.01 nat); near and above it real entropies are
    larger, for the law lets a crossover look like a corner: at n = 1024 and σ = σ_c it says 0, and
    the mean entropy is about 2.6.

    Parameters
    ----------
    logit_std, n_keys
        As for `saturation_ratio`, with one key allowed.

    Returns
    -------
    float
        In nats.

    Raises
    ------
    ValueError
        If `logit_std` is negative or not finite, or `n_keys` is no positive integer.

    References
    ----------
    Derrida (1981), the random-energy model.
    """
    logit_std = _checks.non_negative_number("logit_std", logit_std)
    n_keys = _checks.positive_int("n_keys", n_keys)
    return max(0.0, math.log(n_keys) - logit_std**2 / 2)
