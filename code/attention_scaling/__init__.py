"""Attention scaling, written out: logits and their moments, softmax, attention, precision, norms.

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
from attention_scaling.conformance import (
    CONFORMANCE_KINDS,
    ConformanceReport,
    Finding,
    check_attention,
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
from attention_scaling.formats import (
    FORMATS,
    FloatFormat,
    float_format,
    round_to_format,
)
from attention_scaling.fused_attention import (
    fused_attention,
    scaled_dot_product_attention,
)
from attention_scaling.initial_logits import (
    initial_logit_std,
    initial_query_variance,
    sample_initial_logits,
)
from attention_scaling.initialisations import (
    INITIALISATIONS,
    Initialisation,
)
from attention_scaling.nonfinite import (
    NonFiniteReport,
    NonFiniteWatch,
    find_first_nonfinite,
)
from attention_scaling.normalization import (
    l2_norm,
    layer_norm,
    qk_norm,
    rms_norm,
)
from attention_scaling.online_attention import (
    online_attention,
)
from attention_scaling.online_softmax import (
    SoftmaxState,
    online_softmax,
    online_softmax_steps,
)
from attention_scaling.precision import (
    PLACEMENTS,
    Placement,
    overflow_threshold,
    scaled_scores,
)
from attention_scaling.probe import (
    AttentionNotSeenError,
    AttentionProbe,
    HeadAttention,
    LayerAttention,
    observe_attention,
)
from attention_scaling.rotary import (
    apply_rotary,
    rotary_frequencies,
    yarn_attention_factor,
)
from attention_scaling.saturation import (
    random_energy_entropy,
    saturation_ratio,
    saturation_threshold,
)
from attention_scaling.score_limits import (
    clamp_scores,
    clamped_weight_ceiling,
    qk_clip,
    soft_cap,
)
from attention_scaling.softmax import (
    effective_keys,
    entropy,
    naive_softmax,
    softmax,
)
from attention_scaling.softmax_jacobian import (
    jacobian_frobenius_norm,
    jacobian_spectral_bounds,
    jacobian_trace,
    jacobian_vector_product,
    softmax_jacobian,
)

__version__ = "0.1.0"

__all__ = [
    "CONFORMANCE_KINDS",
    "FORMATS",
    "INITIALISATIONS",
    "PLACEMENTS",
    "SCALE_RULES",
    "AttentionNotSeenError",
    "AttentionProbe",
    "ConformanceReport",
    "Estimate",
    "Finding",
    "FloatFormat",
    "HeadAttention",
    "Initialisation",
    "LayerAttention",
    "MaskedRows",
    "Moments",
    "NonFiniteReport",
    "NonFiniteWatch",
    "Placement",
    "SoftmaxState",
    "apply_rotary",
    "attention_logits",
    "check_attention",
    "clamp_scores",
    "clamped_weight_ceiling",
    "conditional_row_std",
    "default_scale",
    "effective_keys",
    "entropy",
    "estimate_mean",
    "estimate_std",
    "estimate_variance",
    "excess_kurtosis",
    "explicit_attention",
    "find_first_nonfinite",
    "float_format",
    "fused_attention",
    "gaussian_moments",
    "iid_moments",
    "initial_logit_std",
    "initial_query_variance",
    "jacobian_frobenius_norm",
    "jacobian_spectral_bounds",
    "jacobian_trace",
    "jacobian_vector_product",
    "l2_norm",
    "layer_norm",
    "loglog_slope",
    "naive_softmax",
    "observe_attention",
    "online_attention",
    "online_softmax",
    "online_softmax_steps",
    "overflow_threshold",
    "qk_clip",
    "qk_norm",
    "random_energy_entropy",
    "rms_norm",
    "rotary_frequencies",
    "round_to_format",
    "sample_dot_products",
    "sample_initial_logits",
    "saturation_ratio",
    "saturation_threshold",
    "scaled_dot_product_attention",
    "scaled_scores",
    "soft_cap",
    "softmax",
    "softmax_jacobian",
    "yarn_attention_factor",
]
