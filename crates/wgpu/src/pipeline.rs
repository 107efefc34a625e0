//! Kernels: WGSL put together from the common part, the decoder of a format and an operation, and
//! compiled when first used.
//!
//! Owns the list of operations and of decoders; not what they are given. Memory: compiled kernels,
//! for as long as the backend lives. Cost: milliseconds to compile one, once.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use thalweg_quant::QuantType;

/// Lanes of a workgroup, `LANES` in `common.wgsl`.
pub(crate) const LANES: usize = 64;

const COMMON: &str = include_str!("shaders/common.wgsl");
const WEIGHTS: &str = include_str!("shaders/weights.wgsl");

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
    (GroupedMatmul, "grouped_matmul"),
    (IndexScores, "index_scores"),
    (Inject, "inject"),
    (Matmul, "matmul"),
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
        matches!(self, Self::Embed | Self::GroupedMatmul | Self::Matmul)
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
            Self::Matmul => Some("TOKENS"),
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
}

impl Key {
    pub(crate) fn new(op: Op) -> Self {
        Self {
            op,
            ty: None,
            constant: 0,
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

    /// The whole WGSL of the kernel.
    pub(crate) fn source(self) -> String {
        let constant = self.op.constant().map(|name| {
            let value = self.constant;
            format!("const {name}: u32 = {value}u;\n")
        });
        let decoder = self.ty.and_then(decoder);
        let weights = decoder.map(|decoder| [decoder, WEIGHTS].concat());
        let parts = [constant, weights].map(Option::unwrap_or_default);
        [
            self.op.directives(),
            &parts[0],
            COMMON,
            &parts[1],
            self.op.source(),
        ]
        .concat()
    }
}

/// Compiled kernels.
#[derive(Debug, Default)]
pub(crate) struct Pipelines(Mutex<HashMap<Key, wgpu::ComputePipeline>>);

impl Pipelines {
    /// The kernel of `key`. A source that does not compile is the device's failure, which the next
    /// check returns.
    pub(crate) fn of(&self, device: &wgpu::Device, key: Key) -> wgpu::ComputePipeline {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let pipeline = all.entry(key).or_insert_with(|| {
            let label = Some(key.op.name());
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label,
                source: wgpu::ShaderSource::Wgsl(key.source().into()),
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: None,
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
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
            match self {
                Self::FmaF16 => Capabilities::SHADER_FLOAT16,
                _ => Capabilities::empty(),
            }
        }
    }

    /// Every kernel that can be asked for: each operation with each format or constant.
    fn all_keys() -> Vec<Key> {
        let mut keys = vec![];
        for &op in Op::ALL {
            let key = Key::new(op);
            let formats = if op.reads_weights() { FORMATS } else { &[] };
            let constants: &[u32] = match op {
                Op::Matmul => &[1, 8],
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

    #[test]
    fn every_kernel_is_valid_and_translates_to_every_language() {
        for key in all_keys() {
            let source = key.source();
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
