"""Attention scaling, written out: moments of q·k, softmax, explicit attention, initialisations.

Each module holds one concept and needs only NumPy and PyTorch. `attention_scaling.style`, which
needs matplotlib, is imported by name when figures are wanted.
"""

from attention_scaling.attention import (
    SCALE_RULES,
    MaskedRows,
    attention_logits,
    default_scale,
    explicit_attention,
)
from attention_scaling.dot_products import (
    Moments,
    conditional_row_std,
    excess_kurtosis,
    gaussian_moments,
    iid_moments,
    sample_dot_products,
)
from attention_scaling.estimates import (
    Estimate,
    estimate_mean,
    estimate_std,
    estimate_variance,
    loglog_slope,
)
from attention_scaling.initial_logits import (
    initial_logit_std,
    initial_query_variance,
    sample_initial_logits,
)
from attention_scaling.initialisations import INITIALISATIONS, Initialisation
from attention_scaling.softmax import (
    effective_keys,
    entropy,
    naive_softmax,
    saturation_threshold,
    softmax,
    softmax_jacobian,
)

__version__ = "0.1.0"

__all__ = [
    "INITIALISATIONS",
    "SCALE_RULES",
    "Estimate",
    "Initialisation",
    "MaskedRows",
    "Moments",
    "attention_logits",
    "conditional_row_std",
    "default_scale",
    "effective_keys",
    "entropy",
    "estimate_mean",
    "estimate_std",
    "estimate_variance",
    "excess_kurtosis",
    "explicit_attention",
    "gaussian_moments",
    "iid_moments",
    "initial_logit_std",
    "initial_query_variance",
    "loglog_slope",
    "naive_softmax",
    "sample_dot_products",
    "sample_initial_logits",
    "saturation_threshold",
    "softmax",
    "softmax_jacobian",
]
