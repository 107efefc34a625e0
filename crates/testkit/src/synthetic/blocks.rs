//! Random blocks of every format, written directly. Owns: where a format keeps its scales, which
//! scale gives a wanted size of weights, the bytes of random, constant and zero blocks. Does not
//! own: which row gets what (`recipe`).
//! Memory: eight encoded scales and one constant block; output goes to the caller's slice.
//!
//! Invariants: 1. every block decodes to finite weights of mean 0, mean square as asked. 2. Integer
//! arithmetic and correctly rounded operations only, so that a stream gives the same bytes
//! everywhere.
//! Cost: about 1 ns for 8 bytes; formats of plain numbers 10 ns a weight.

use thalweg_gguf::TensorType;
use thalweg_quant::formats::F16Le;
use thalweg_quant::{QuantType, Result};

use crate::random::Random;

/// Scales of neighboring blocks differ, as in real files.
const SCALE_STEPS: [f64; 8] = [0.70, 0.80, 0.88, 0.96, 1.04, 1.12, 1.20, 1.30];
/// Blocks from which the mean square of a format's codes is taken.
const SAMPLE_BLOCKS: usize = 512;

/// How a block format is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    ty: QuantType,
    /// Byte offset of the f16 scale.
    scale: usize,
    /// Byte offset of a second f16, and how many scales it is: the offset that centers the codes.
    second: Option<(usize, f64)>,
    /// Two-bit codes where 3 would lie off center: 3 is written as 1, as quantizers do.
    ternary: bool,
    /// Codes are off center, the sign of the scale evens it out.
    signed: bool,
}

/// Formats of blocks that can be filled with random codes.
const FORMATS: [Format; 20] = [
    ternary(QuantType::Q2_0, 0),
    plain(QuantType::Q1_0, 0),
    ternary(QuantType::TQ2_0, 64),
    signed(QuantType::Q4_0, 0),
    signed(QuantType::Q5_0, 0),
    signed(QuantType::Q8_0, 0),
    signed(QuantType::IQ4_NL, 0),
    signed(QuantType::IQ4_XS, 0),
    signed(QuantType::IQ3_S, 0),
    signed(QuantType::IQ3_XXS, 0),
    signed(QuantType::IQ2_S, 0),
    signed(QuantType::IQ2_XS, 0),
    signed(QuantType::IQ2_XXS, 0),
    signed(QuantType::Q3_K, 108),
    signed(QuantType::Q6_K, 208),
    with_second(QuantType::Q2_K, 80, 82, 1.5),
    with_second(QuantType::Q4_1, 0, 2, -7.5),
    with_second(QuantType::Q5_1, 0, 2, -15.5),
    with_second(QuantType::Q4_K, 0, 2, 7.5),
    with_second(QuantType::Q5_K, 0, 2, 15.5),
];

const fn plain(ty: QuantType, scale: usize) -> Format {
    Format {
        ty,
        scale,
        second: None,
        ternary: false,
        signed: false,
    }
}

const fn ternary(ty: QuantType, scale: usize) -> Format {
    Format {
        ternary: true,
        ..plain(ty, scale)
    }
}

const fn signed(ty: QuantType, scale: usize) -> Format {
    Format {
        signed: true,
        ..plain(ty, scale)
    }
}

const fn with_second(ty: QuantType, scale: usize, at: usize, factor: f64) -> Format {
    Format {
        second: Some((at, factor)),
        ..plain(ty, scale)
    }
}

/// Types of plain numbers, which go through f32.
const NUMBERS: [TensorType; 3] = [TensorType::F32, TensorType::F16, TensorType::BF16];
/// Types in which a chosen value can be written, not only a random one.
pub(crate) const DENSE: [TensorType; 6] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q2_0,
];

/// Every type that [`Blocks`] can fill at random.
pub(crate) fn random_types() -> impl Iterator<Item = TensorType> {
    let blocks = FORMATS
        .iter()
        .filter_map(|format| TensorType::from_id(format.ty.ggml_type()).ok());
    NUMBERS.into_iter().chain(blocks)
}

/// What a part of a row holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fill {
    Zero,
    /// The same value everywhere.
    Constant(f64),
    /// Independent values of mean 0 and this root mean square.
    Random(f64),
}

/// Writes rows of one type and fill.
#[derive(Debug)]
pub(crate) enum Blocks {
    /// The same bytes in every block.
    Same(Vec<u8>),
    /// Numbers through f32.
    Numbers { codec: QuantType, rms: f64 },
    /// Random codes under one of eight scales.
    Codes {
        format: Format,
        /// Eight encodings of the scale, and of the second.
        scales: [[u8; 2]; 8],
        seconds: [[u8; 2]; 8],
    },
}

impl Blocks {
    /// A filler; `None` if the type cannot hold this fill.
    pub(crate) fn new(ty: TensorType, fill: Fill) -> Option<Self> {
        let codec = QuantType::from_ggml(ty.id())?;
        match fill {
            // A scale of zero makes every code zero.
            Fill::Zero => Some(Self::Same(vec![0; codec.block_bytes()])),
            Fill::Constant(value) => {
                let mut block = vec![0; codec.block_bytes()];
                let values = vec![value as f32; codec.block_len()];
                codec.quantize_row(&values, &mut block).ok()?;
                Some(Self::Same(block))
            }
            Fill::Random(rms) if NUMBERS.contains(&ty) => Some(Self::Numbers { codec, rms }),
            Fill::Random(rms) => Self::codes(codec, rms),
        }
    }

    fn codes(codec: QuantType, rms: f64) -> Option<Self> {
        let format = *FORMATS.iter().find(|format| format.ty == codec)?;
        let mean_square = SCALE_STEPS.iter().map(|s| s * s).sum::<f64>() / 8.0;
        let unit = rms / (unit_rms(format)? * mean_square.sqrt());
        let encode = |factor: f64| half((unit * factor) as f32);
        let second = format.second.map_or(0.0, |(_, factor)| factor);
        Some(Self::Codes {
            format,
            scales: SCALE_STEPS.map(encode),
            seconds: SCALE_STEPS.map(|step| encode(step * second)),
        })
    }

    /// Fills `out`, whole blocks, from the stream.
    ///
    /// # Errors
    /// Those of the codec, for plain numbers out of its range.
    pub(crate) fn fill(&self, random: &mut Random, out: &mut [u8]) -> Result<()> {
        match self {
            Self::Same(block) => {
                for target in out.chunks_exact_mut(block.len()) {
                    target.copy_from_slice(block);
                }
            }
            Self::Numbers { codec, rms } => {
                let rms = *rms as f32;
                let mut values = [0.0; 256];
                for target in out.chunks_mut(256 * codec.block_bytes()) {
                    let n = target.len() / codec.block_bytes();
                    values[..n].fill_with(|| rms * random.normal());
                    codec.quantize_row(&values[..n], target)?;
                }
            }
            Self::Codes {
                format,
                scales,
                seconds,
            } => fill_codes(format, scales, seconds, random, out),
        }
        Ok(())
    }
}

fn fill_codes(
    format: &Format,
    scales: &[[u8; 2]; 8],
    seconds: &[[u8; 2]; 8],
    random: &mut Random,
    out: &mut [u8],
) {
    // The two common sizes as constants, so that the copies of a block unroll.
    match (format.ty.block_bytes(), format.ternary) {
        (18, true) => fill_each::<true>(format, 18, scales, seconds, random, out),
        (18, false) => fill_each::<false>(format, 18, scales, seconds, random, out),
        (n, true) => fill_each::<true>(format, n, scales, seconds, random, out),
        (n, false) => fill_each::<false>(format, n, scales, seconds, random, out),
    }
}

#[inline(always)]
fn fill_each<const TERNARY: bool>(
    format: &Format,
    block_bytes: usize,
    scales: &[[u8; 2]; 8],
    seconds: &[[u8; 2]; 8],
    random: &mut Random,
    out: &mut [u8],
) {
    // Bit 15 of a half is its sign: bit 7 of the second byte.
    let sign_mask = if format.signed { 0x80 } else { 0 };
    // Four bits a block choose scale and sign.
    let (mut choices, mut left) = (0_u64, 0_u32);
    for block in out.chunks_exact_mut(block_bytes) {
        for codes in block.chunks_mut(8) {
            let mut bits = random.next_u64();
            if TERNARY {
                bits = without_code_three(bits);
            }
            codes.copy_from_slice(&bits.to_le_bytes()[..codes.len()]);
        }
        if left == 0 {
            (choices, left) = (random.next_u64(), 16);
        }
        let choice = (choices & 7) as usize;
        let sign = if choices & 8 == 0 { 0 } else { sign_mask };
        choices >>= 4;
        left -= 1;
        let [low, high] = scales[choice];
        block[format.scale..format.scale + 2].copy_from_slice(&[low, high ^ sign]);
        if let Some((at, _)) = format.second {
            block[at..at + 2].copy_from_slice(&seconds[choice]);
        }
    }
}

/// Two-bit lanes with 3 replaced by 1: a quarter 0, a half 1, a quarter 2.
const fn without_code_three(bits: u64) -> u64 {
    const LOW_BITS: u64 = 0x5555_5555_5555_5555;
    bits & !((bits & (bits >> 1) & LOW_BITS) << 1)
}

/// Root mean square of the format's random weights under the scale 1.
fn unit_rms(format: Format) -> Option<f64> {
    let second = format.second.map_or(0.0, |(_, factor)| factor as f32);
    let (scales, seconds) = ([half(1.0); 8], [half(second); 8]);
    let mut blocks = vec![0; SAMPLE_BLOCKS * format.ty.block_bytes()];
    let mut values = vec![0.0; SAMPLE_BLOCKS * format.ty.block_len()];
    let mut random = Random::for_tensor(0, format.ty.name());
    fill_codes(&format, &scales, &seconds, &mut random, &mut blocks);
    format.ty.decode_row(&blocks, &mut values).ok()?;
    let sum: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    Some((sum / values.len() as f64).sqrt())
}

/// The nearest half, as its bytes.
fn half(value: f32) -> [u8; 2] {
    F16Le::from_f32(value).to_bits().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(ty: TensorType, fill: Fill, n_blocks: usize) -> Vec<f32> {
        let codec = QuantType::from_ggml(ty.id()).unwrap();
        let mut bytes = vec![0xaa; n_blocks * codec.block_bytes()];
        let blocks = Blocks::new(ty, fill).unwrap();
        let mut random = Random::for_tensor(5, "t");
        blocks.fill(&mut random, &mut bytes).unwrap();
        assert_eq!(codec.first_non_finite(&bytes).unwrap(), None, "{ty}");
        let mut values = vec![0.0; n_blocks * codec.block_len()];
        codec.decode_row(&bytes, &mut values).unwrap();
        values
    }

    #[test]
    fn random_weights_have_mean_zero_and_the_size_asked_for_in_every_format() {
        for ty in random_types() {
            for wanted in [1.0, 0.02, 0.002] {
                let n_blocks = (1 << 19) / usize::try_from(ty.block_len()).unwrap();
                let values = decoded(ty, Fill::Random(wanted), n_blocks);
                let n = values.len() as f64;
                let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
                let square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
                let rms = square.sqrt();
                assert!((rms / wanted - 1.0).abs() < 0.1, "{ty}: {rms} for {wanted}");
                // Blocks of one sign average out slowly: 2,048 of them to 2 %.
                assert!(mean.abs() < 0.05 * wanted, "{ty}: mean {mean} of {wanted}");
            }
        }
    }

    #[test]
    fn chosen_values_can_be_written_in_every_dense_type() {
        for ty in DENSE {
            for value in [1.0, -0.03, 0.5] {
                for v in decoded(ty, Fill::Constant(value), 4) {
                    assert!((f64::from(v) / value - 1.0).abs() < 0.01, "{ty}: {v}");
                }
            }
            assert!(decoded(ty, Fill::Zero, 4).iter().all(|v| v.abs() < 1e-30));
        }
    }

    #[test]
    fn code_three_is_never_drawn_and_zero_is_the_most_common_weight() {
        let values = decoded(TensorType::Q2_0, Fill::Random(1.0), 4096);
        let share = |wanted: fn(f32) -> bool| {
            values.iter().filter(|v| wanted(**v)).count() as f64 / values.len() as f64
        };
        assert!((share(|v| v.abs() < 1e-30) - 0.5).abs() < 0.01);
        assert!((share(|v| v < 0.0) - 0.25).abs() < 0.01);
        let largest = values.iter().fold(0.0_f32, |a, v| a.max(*v));
        let smallest = values.iter().fold(0.0_f32, |a, v| a.min(*v));
        assert!((largest + smallest).abs() < 1e-6, "{smallest}..{largest}");
    }

    #[test]
    fn types_that_cannot_hold_a_fill_are_refused() {
        assert!(Blocks::new(TensorType::IQ3_S, Fill::Constant(1.0)).is_none());
        assert!(Blocks::new(TensorType::I32, Fill::Random(1.0)).is_none());
    }
}
