//! Kernels: WGSL put together from the common part, the decoder of a format and an operation, and
//! compiled when first used.
//!
//! Owns the list of operations and of decoders; not what they are given. Memory: compiled kernels,
//! for as long as the backend lives. Cost: milliseconds to compile one, once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use thalweg_quant::QuantType;

use crate::Tuning;
use crate::template::expand;

/// Lanes of a workgroup, `LANES` in `common.wgsl`.
pub(crate) const LANES: usize = 64;

const COMMON: &str = include_str!("shaders/common.wgsl");
const WEIGHTS: &str = include_str!("shaders/weights.wgsl");
const PRODUCTS: &str = include_str!("shaders/products.wgsl");
/// Of formats that do not say otherwise.
const UNSCALED: &str = "fn scaled(x: vec4<f32>, q: u32) -> vec4<f32> {\n    return x;\n}\n";
const UNPREPARED: &str = "fn prepare(lane: u32) {\n}\n";

macro_rules! operations {
    ($($(#[$doc:meta])* ($variant:ident, $file:literal)),+ $(,)?) => {
        /// An operation with a file of its own.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub(crate) enum Op { $($variant),+ }

        impl Op {
            /// All of them.
            #[cfg(test)]
            pub(crate) const ALL: &[Self] = &[$(Self::$variant),+];

            fn source(self) -> &'static str {
                match self {
                    $(Self::$variant => include_str!(concat!("shaders/", $file, ".wgsl"))),+
                }
            }

            /// The file's name, for labels.
            pub(crate) fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $file),+
                }
            }
        }
    };
}

operations! {
    (Add, "add"),
    (Attention, "attention"),
    (CausalConv, "causal_conv"),
    (Combine, "combine"),
    (DeltaOut, "delta_out"),
    (DeltaPrepare, "delta_prepare"),
    (DeltaRule, "delta_rule"),
    (Embed, "embed"),
    (FmaF16, "fma_f16"),
    (FmaF32, "fma_f32"),
    (GateStreams, "gate_streams"),
    (IndexScores, "index_scores"),
    (Inject, "inject"),
    (Matmul, "matmul"),
    (Matvec, "matvec"),
    (NgramGate, "ngram_gate"),
    (NormRope, "norm_rope"),
    (PoolMean, "pool_mean"),
    (RmsNorm, "rms_norm"),
    (SelectBlocks, "select_blocks"),
    (Silu, "silu"),
    (Swiglu, "swiglu"),
}

impl Op {
    /// Whether it reads weights in their stored format.
    #[cfg(test)]
    pub(crate) fn reads_weights(self) -> bool {
        matches!(self, Self::Embed) || self.is_product()
    }

    /// Whether it multiplies weights by vectors, with the constants of [`Product`].
    #[cfg(test)]
    pub(crate) fn is_product(self) -> bool {
        matches!(self, Self::Matmul | Self::Matvec)
    }

    /// Directives that come before everything else.
    fn directives(self) -> &'static str {
        match self {
            Self::FmaF16 => "enable f16;\n",
            _ => "",
        }
    }

    /// The name of the number that the kernel is made for, where there is one.
    pub(crate) fn constant(self) -> Option<&'static str> {
        match self {
            Self::Attention => Some("HEAD_DIM"),
            _ => None,
        }
    }
}

macro_rules! decoders {
    ($(($ty:ident, $file:literal)),+ $(,)?) => {
        /// Formats that kernels can read.
        pub const FORMATS: &[QuantType] = &[$(QuantType::$ty),+];

        fn decoder(ty: QuantType) -> Option<&'static str> {
            match ty {
                $(QuantType::$ty => Some(include_str!(concat!("shaders/decode/", $file, ".wgsl"))),)+
                _ => None,
            }
        }

        fn run_decoder(ty: QuantType) -> Option<&'static str> {
            match ty {
                $(QuantType::$ty => Some(include_str!(concat!("shaders/run/", $file, ".wgsl"))),)+
                _ => None,
            }
        }
    };
}

decoders! {
    (F32, "f32"),
    (F16, "f16"),
    (BF16, "bf16"),
    (Q8_0, "q8_0"),
    (Q4_0, "q4_0"),
    (Q2_0, "q2_0"),
    (IQ4_NL, "iq4_nl"),
    (IQ3_S, "iq3_s"),
    (Q4_K, "q4_k"),
    (Q6_K, "q6_k"),
}

/// What a kernel is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    op: Op,
    /// Format of the weights, for operations that read them.
    ty: Option<QuantType>,
    /// Value of the operation's constant.
    constant: u32,
    product: Option<Product>,
}

/// What a kernel of products is made for beside the format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    pub(crate) access: Access,
    pub(crate) items: Items,
    /// Rows of a group, where one vector is multiplied.
    pub(crate) rows: u32,
}

/// How rows lie in their buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Access {
    /// Whole runs at multiples of sixteen bytes.
    Wide,
    /// Whole runs at even addresses.
    Even,
    /// The last run is cut short.
    Cut,
}

impl Access {
    /// Of rows of `n_in` weights that begin at multiples of `alignment` bytes.
    pub(crate) fn of(ty: QuantType, n_in: usize, alignment: usize) -> Self {
        let is_wide = alignment.is_multiple_of(16);
        match run_len(ty) {
            run if n_in == 0 || !n_in.is_multiple_of(run) => Self::Cut,
            // Blocks of the other formats have no multiple of four bytes.
            4 | 8 if is_wide => Self::Wide,
            _ if is_wide && ty == QuantType::Q4_K => Self::Wide,
            _ => Self::Even,
        }
    }

    fn source(self) -> &'static str {
        match self {
            Self::Wide => include_str!("shaders/access_wide.wgsl"),
            Self::Even => include_str!("shaders/access_even.wgsl"),
            Self::Cut => include_str!("shaders/access_cut.wgsl"),
        }
    }
}

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Items {
    /// Tokens, each with the same matrix.
    Tokens,
    /// Pairs of a matrix and a vector.
    Picks,
}

impl Items {
    fn source(self) -> &'static str {
        match self {
            Self::Tokens => include_str!("shaders/items_tokens.wgsl"),
            Self::Picks => include_str!("shaders/items_picks.wgsl"),
        }
    }
}

/// Weights of a run, `RUN` in the format's file.
fn run_len(ty: QuantType) -> usize {
    match ty {
        QuantType::F32 => 4,
        QuantType::F16 | QuantType::BF16 => 8,
        _ => 16,
    }
}

impl Key {
    pub(crate) fn new(op: Op) -> Self {
        Self {
            op,
            ty: None,
            constant: 0,
            product: None,
        }
    }

    pub(crate) fn of_weights(self, ty: QuantType) -> Self {
        Self {
            ty: Some(ty),
            ..self
        }
    }

    pub(crate) fn with(self, constant: u32) -> Self {
        Self { constant, ..self }
    }

    pub(crate) fn product(op: Op, ty: QuantType, product: Product) -> Self {
        Self {
            product: Some(product),
            ..Self::new(op).of_weights(ty)
        }
    }

    /// The whole WGSL of the kernel.
    pub(crate) fn source(self, tuning: &Tuning) -> String {
        let mut constants = vec![];
        if let Some(name) = self.op.constant() {
            constants.push((name, self.constant));
        }
        let mut parts = vec![COMMON];
        if let Some(decoder) = self.ty.and_then(decoder) {
            parts.extend([decoder, WEIGHTS]);
        }
        if let Some((product, ty)) = self.product.zip(self.ty) {
            constants.extend(product.constants(self.op, ty, tuning));
            let run = run_decoder(ty).unwrap_or_default();
            parts.extend([
                PRODUCTS,
                run,
                product.access.source(),
                product.items.source(),
            ]);
            for (name, default) in [("fn scaled(", UNSCALED), ("fn prepare(", UNPREPARED)] {
                if !run.contains(name) {
                    parts.push(default);
                }
            }
        }
        parts.push(self.op.source());
        let lines = constants
            .iter()
            .map(|(name, value)| format!("const {name}: u32 = {value}u;\n"));
        let lines: String = lines.collect();
        [
            self.op.directives(),
            &lines,
            &expand(&parts.concat(), &constants),
        ]
        .concat()
    }
}

impl Product {
    /// The numbers that `products.wgsl` and the operation's file are made for.
    fn constants(self, op: Op, ty: QuantType, tuning: &Tuning) -> Vec<(&'static str, u32)> {
        let run = run_len(ty) as u32;
        let (row_groups, item_groups) = tuning.tile_groups;
        let (tile_rows, tile_columns) = tuning.tile_block;
        let mut constants = vec![("FOURS", run / 4), ("PARTS", tuning.parts)];
        constants.extend(match op {
            Op::Matvec => [
                ("THREADS", tuning.parts * tuning.vector_groups),
                ("GROUPS", tuning.vector_groups),
                ("ROWS", self.rows),
                ("COLUMNS", self.rows),
                ("STAGED_RUNS", tuning.staged / run),
                ("TILE_ITEMS", 1),
            ]
            .to_vec(),
            _ => [
                ("THREADS", tuning.parts * row_groups * item_groups),
                ("ROW_GROUPS", row_groups),
                ("ITEM_GROUPS", item_groups),
                ("ROWS", tile_rows),
                ("COLUMNS", tile_columns),
                ("STEPS", tuning.tile_depth / (run * tuning.parts)),
                ("TILE_ITEMS", item_groups * tile_columns),
            ]
            .to_vec(),
        });
        constants
    }
}

/// Compiled kernels.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    tuning: Tuning,
    compiled: Mutex<HashMap<Key, wgpu::ComputePipeline>>,
}

impl Pipelines {
    pub(crate) fn new(tuning: Tuning) -> Self {
        Self {
            tuning,
            compiled: Mutex::default(),
        }
    }

    /// The kernel of `key`. A source that does not compile is the device's failure, which the next
    /// check returns.
    pub(crate) fn of(&self, device: &wgpu::Device, key: Key) -> wgpu::ComputePipeline {
        let mut all = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let pipeline = all.entry(key).or_insert_with(|| {
            let label = Some(key.op.name());
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label,
                source: wgpu::ShaderSource::Wgsl(key.source(&self.tuning).into()),
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    // Every kernel writes what it reads there.
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            })
        });
        pipeline.clone()
    }
}

#[cfg(test)]
mod tests {
    use naga::back::{hlsl, msl, spv};
    use naga::valid::{Capabilities, ValidationFlags, Validator};

    use super::*;

    impl Op {
        /// What a device must have to run it.
        fn needs(self) -> Capabilities {
            // Conversions of halves, which every API has.
            let common = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
            match self {
                Self::FmaF16 => common | Capabilities::SHADER_FLOAT16,
                _ => common,
            }
        }
    }

    /// Every kernel that can be asked for: each operation with each format or constant.
    fn all_keys() -> Vec<Key> {
        let mut keys = vec![];
        for &op in Op::ALL {
            let key = Key::new(op);
            let formats = if op.reads_weights() { FORMATS } else { &[] };
            if op.is_product() {
                keys.extend(FORMATS.iter().flat_map(|ty| product_keys(op, *ty)));
                continue;
            }
            let constants: &[u32] = match op {
                Op::Attention => &[1, 12, 64, 256, 1024],
                _ => &[0],
            };
            for &constant in constants {
                let key = key.with(constant);
                match formats {
                    [] => keys.push(key),
                    all => keys.extend(all.iter().map(|ty| key.of_weights(*ty))),
                }
            }
        }
        keys
    }

    /// Every kernel of products of an operation and a format.
    fn product_keys(op: Op, ty: QuantType) -> Vec<Key> {
        let mut keys = vec![];
        let block = ty.block_len();
        let mut ways = vec![
            Access::of(ty, 32 * block, 2),
            Access::of(ty, 32 * block, 16),
        ];
        if block == 1 {
            ways.push(Access::of(ty, 3, 4));
        }
        ways.dedup();
        for access in ways {
            for items in [Items::Tokens, Items::Picks] {
                let rows: &[u32] = if op == Op::Matvec { &[1, 2, 4] } else { &[0] };
                keys.extend(rows.iter().map(|&rows| {
                    let product = Product {
                        access,
                        items,
                        rows,
                    };
                    Key::product(op, ty, product)
                }));
            }
        }
        keys
    }

    #[test]
    fn runs_are_as_long_as_their_files_say() {
        for &ty in FORMATS {
            let source = run_decoder(ty).expect("listed");
            let line = format!("const RUN: u32 = {}u;", run_len(ty));
            assert!(source.contains(&line), "{ty}: no {line}");
        }
    }

    #[test]
    fn every_kernel_is_valid_and_translates_to_every_language() {
        for key in all_keys() {
            let source = key.source(&Tuning::default());
            let module = naga::front::wgsl::parse_str(&source)
                .unwrap_or_else(|e| panic!("{key:?}: {}", e.emit_to_string(&source)));
            let mut validator = Validator::new(ValidationFlags::all(), key.op.needs());
            let info = validator
                .validate(&module)
                .unwrap_or_else(|e| panic!("{key:?}: {}", e.emit_to_string(&source)));
            let words = spv::write_vec(&module, &info, &spv::Options::default(), None)
                .unwrap_or_else(|e| panic!("{key:?} to SPIR-V: {e}"));
            assert_eq!(words[0], 0x0723_0203, "{key:?}: no SPIR-V");
            let metal = msl::Options {
                fake_missing_bindings: true,
                ..Default::default()
            };
            let (text, _) = msl::write_string(&module, &info, &metal, &Default::default())
                .unwrap_or_else(|e| panic!("{key:?} to MSL: {e}"));
            assert!(text.contains("kernel void"), "{key:?}: no Metal kernel");
            let mut text = String::new();
            let options = hlsl::Options::default();
            let pipeline = hlsl::PipelineOptions::default();
            hlsl::Writer::new(&mut text, &options, &pipeline)
                .write(&module, &info, None)
                .unwrap_or_else(|e| panic!("{key:?} to HLSL: {e}"));
            assert!(text.contains("numthreads"), "{key:?}: no HLSL kernel");
        }
    }

    /// Formats that have no decoder yet.
    const WITHOUT: [&str; 17] = [
        "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q5_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S",
        "IQ2_S", "IQ4_XS", "IQ1_M", "TQ1_0", "TQ2_0", "MXFP4", "Q1_0",
    ];

    #[test]
    fn every_format_has_a_decoder_or_is_listed_as_without() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/shaders/decode");
        for &ty in QuantType::ALL {
            let name = ty.to_string();
            let file = format!("{folder}/{}.wgsl", name.to_lowercase());
            let exists = std::path::Path::new(&file).exists();
            let listed = WITHOUT.contains(&&*name);
            assert!(exists || listed, "{file} is missing");
            assert!(
                !(exists && listed),
                "{name} has {file}: take it off the list"
            );
            assert_eq!(
                decoder(ty).is_some(),
                exists,
                "{file} is not in `decoders!`"
            );
        }
    }

    #[test]
    fn decoders_know_the_sizes_of_blocks() {
        for &ty in FORMATS {
            let source = decoder(ty).expect("listed");
            // Formats of single numbers count as blocks of four.
            let scale = if ty.block_len() == 1 { 4 } else { 1 };
            for (name, size) in [("LEN", ty.block_len()), ("BYTES", ty.block_bytes())] {
                let line = format!("const BLOCK_{name}: u32 = {}u;", size * scale);
                assert!(source.contains(&line), "{ty}: no {line}");
            }
        }
    }
}
