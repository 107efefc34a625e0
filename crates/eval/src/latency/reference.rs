//! Figures that others published, as reference data for the models. None was measured here.
//!
//! Owns constant tables only. Source of all of them: the published planning and result notes of a
//! project that prunes Qwen3.8-Flash-Next (48 layers, 10 of 512 experts, Q2_0) for a 13-inch Apple
//! M5 laptop with 24 GB of memory and a 1 TB drive. Tables named `MEASURED` or `SSD` are what its
//! authors say they measured on that machine; the others are their predictions. Neither is a
//! statement about this software. `K320` means 320 experts a layer kept, and so on.

/// Bytes of one Q2_0 expert: three matrices of 2560 x 640, 18 bytes for 64 weights.
pub const EXPERT_BYTES: u64 = 3 * 2560 * 640 / 64 * 18;
/// Layers of the model.
pub const N_LAYER: u64 = 48;
/// Experts that a token picks over all layers.
pub const PICKS_PER_TOKEN: f64 = 480.0;
/// Memory for experts in their predictions: 113 of each layer, rounded.
pub const RESIDENT_BYTES: u64 = 7_500_000_000;
/// Bandwidth behind the low ends of [`DECODE_TABLE`].
pub const LOW_GB_PER_S: f64 = 3.90;
/// Bandwidth behind the high ends of [`DECODE_TABLE`].
pub const HIGH_GB_PER_S: f64 = 6.80;

/// Ways of reading and their measured bandwidths in GB/s.
pub const SSD_GB_PER_S: &[(&str, f64)] = &[
    ("1 thread, standard GGUF", 2.41),
    ("1 thread, expert file", LOW_GB_PER_S),
    ("2 to 4 threads, positioned reads", HIGH_GB_PER_S),
];

/// Configuration, misses a token, printed hit rate in percent; simulated by its authors.
pub const MISSES_TABLE: &[(&str, f64, f64)] = &[
    ("K512 lru", 84.84, 82.32),
    ("K320_reap_hybrid lru rel:0.09", 53.95, 88.76),
    ("K320_reap_l2_sum lru rel:0.09", 56.29, 88.27),
    ("K256_reap_l2_sum lru rel:0.09", 44.65, 90.70),
];

/// A row of [`DECODE_TABLE`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct DecodeFigures {
    /// The keep-map.
    pub name: &'static str,
    /// Misses a token, where printed.
    pub misses_per_token: Option<f64>,
    /// Predicted rate at [`LOW_GB_PER_S`].
    pub low_tokens_per_s: f64,
    /// Predicted rate at [`HIGH_GB_PER_S`].
    pub high_tokens_per_s: f64,
}

/// Predicted decode rates, one digit after the point.
pub const DECODE_TABLE: &[DecodeFigures] = &[
    DecodeFigures {
        name: "K320_reap_hybrid",
        misses_per_token: Some(53.95),
        low_tokens_per_s: 32.1,
        high_tokens_per_s: 43.5,
    },
    DecodeFigures {
        name: "K320_reap_l2_sum",
        misses_per_token: Some(56.29),
        low_tokens_per_s: 31.3,
        high_tokens_per_s: 42.7,
    },
    DecodeFigures {
        name: "K256_reap_l2_sum",
        misses_per_token: Some(44.65),
        low_tokens_per_s: 35.9,
        high_tokens_per_s: 47.4,
    },
    DecodeFigures {
        name: "K224_reap_l2_sum",
        misses_per_token: None,
        low_tokens_per_s: 39.6,
        high_tokens_per_s: 51.0,
    },
];

/// Experts kept a layer, and GB of experts beyond [`RESIDENT_BYTES`].
pub const NON_RESIDENT_TABLE: &[(u64, f64)] = &[(320, 13.73), (256, 9.49), (224, 7.36)];

/// A row of [`PREFILL_TABLE`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct PrefillFigures {
    /// Tokens of a cold prompt.
    pub n_tokens: u64,
    /// Experts kept a layer.
    pub n_expert: u64,
    /// What was predicted.
    pub figure: PrefillFigure,
}

/// A rate with one digit after the point, or a time with two.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum PrefillFigure {
    /// Tokens a second.
    TokensPerS(f64),
    /// Seconds.
    Seconds(f64),
}

/// Predicted times of cold prompts.
pub const PREFILL_TABLE: &[PrefillFigures] = &[
    PrefillFigures {
        n_tokens: 4096,
        n_expert: 320,
        figure: PrefillFigure::TokensPerS(302.9),
    },
    PrefillFigures {
        n_tokens: 4096,
        n_expert: 256,
        figure: PrefillFigure::TokensPerS(317.5),
    },
    PrefillFigures {
        n_tokens: 256,
        n_expert: 320,
        figure: PrefillFigure::Seconds(2.74),
    },
    PrefillFigures {
        n_tokens: 256,
        n_expert: 256,
        figure: PrefillFigure::Seconds(2.11),
    },
];

/// A row of [`MEASURED_DECODE`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct MeasuredDecode {
    /// The run.
    pub name: &'static str,
    /// Demand reads a token.
    pub misses_per_token: f64,
    /// Time of a token.
    pub ms_per_token: f64,
    /// Time of a token spent waiting for reads, where given.
    pub wait_ms: Option<f64>,
    /// Time of a token spent in kernels, where given.
    pub gpu_ms: Option<f64>,
}

/// Decode as its authors measured it, of their engine.
pub const MEASURED_DECODE: &[MeasuredDecode] = &[
    measured("IQ3_S, 3.4 GB, bias off", 108.9, 205.02, None, None),
    measured("Q2_0, 3.4 GB, bias off", 84.3, 158.22, None, None),
    measured(
        "Q2_0, 3.4 GB, abs:0.85",
        40.9,
        124.31,
        Some(34.15),
        Some(88.35),
    ),
    measured(
        "Q2_0, 3.4 GB, abs:0.85, earlier pass",
        40.9,
        73.96,
        Some(16.11),
        Some(56.29),
    ),
    measured(
        "Q2_0, 3.4 GB, abs:0.85, after 1,024 tokens",
        35.4,
        107.20,
        Some(30.78),
        Some(73.87),
    ),
    measured(
        "Q2_0, 3.4 GB, abs:0.85, after 2,048 tokens",
        29.6,
        119.51,
        Some(24.38),
        Some(92.44),
    ),
    measured("7.0 GB, stock", 17.7, 58.72, Some(7.26), None),
    measured("7.0 GB, defaults", 11.6, 45.28, Some(5.08), Some(38.86)),
    measured(
        "7.0 GB, two layers of read-ahead",
        10.5,
        44.95,
        Some(4.61),
        None,
    ),
];

/// A row of [`MEASURED_PREFILL`].
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub struct MeasuredPrefill {
    /// The run.
    pub name: &'static str,
    /// Tokens of the cold prompt.
    pub n_tokens: u64,
    /// Its time.
    pub seconds: f64,
}

/// Cold prompts as its authors measured them, K256 with 3.4 GB of experts in memory.
pub const MEASURED_PREFILL: &[MeasuredPrefill] = &[
    MeasuredPrefill {
        name: "earlier pass",
        n_tokens: 1024,
        seconds: 3.194_19,
    },
    MeasuredPrefill {
        name: "earlier pass",
        n_tokens: 2048,
        seconds: 5.793_65,
    },
    MeasuredPrefill {
        name: "archived",
        n_tokens: 1024,
        seconds: 4.452_38,
    },
    MeasuredPrefill {
        name: "archived",
        n_tokens: 2048,
        seconds: 7.635_20,
    },
];

const fn measured(
    name: &'static str,
    misses_per_token: f64,
    ms_per_token: f64,
    wait_ms: Option<f64>,
    gpu_ms: Option<f64>,
) -> MeasuredDecode {
    MeasuredDecode {
        name,
        misses_per_token,
        ms_per_token,
        wait_ms,
        gpu_ms,
    }
}
