//! One factor for a layer's routed output, and where it goes: into the scales of the down projection.
//!
//! Memory: none beyond the caller's. Cost: a pass over the values.

use thalweg_quant::QuantType;
use thalweg_quant::formats::F16Le;

use crate::{Error, Result};

/// The factor of `found` that brings it nearest to `wanted`: `<wanted, found> / |found|^2`, drawn
/// toward 1 by the share `gamma`. 1 where `found` is all zeros. With `gamma` from 0 to 1 it never
/// makes the squared error larger.
#[must_use]
pub fn alpha(wanted: &[f64], found: &[f64], gamma: f64) -> f64 {
    let (mut both, mut energy) = (0.0, 0.0);
    for (w, f) in wanted.iter().zip(found) {
        both += w * f;
        energy += f * f;
    }
    match energy > 0.0 {
        true => 1.0 + (1.0 - gamma) * (both / energy - 1.0),
        false => 1.0,
    }
}

/// Where a block of a type holds the halves that all of its weights are proportional to.
fn scale_offsets(ty: QuantType) -> Option<&'static [usize]> {
    match ty {
        QuantType::Q2_0
        | QuantType::Q4_0
        | QuantType::Q5_0
        | QuantType::Q8_0
        | QuantType::IQ4_NL
        | QuantType::IQ4_XS
        | QuantType::IQ3_S
        | QuantType::F16 => Some(&[0]),
        QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => Some(&[0, 2]),
        QuantType::Q6_K => Some(&[208]),
        _ => None,
    }
}

/// Whether [`scale_blocks`] knows this type.
#[must_use]
pub fn can_scale(ty: QuantType) -> bool {
    scale_offsets(ty).is_some() || ty == QuantType::F32
}

/// Multiplies stored weights by `factor`, in place: the scales of their blocks, rounded once to a half,
/// hence within one part in 2048; codes stay.
///
/// # Errors
/// [`Error::OutOfRange`] for a type without such scales, for bytes that are no whole blocks, and for a
/// scale that becomes infinite.
pub fn scale_blocks(ty: QuantType, bytes: &mut [u8], factor: f64) -> Result<()> {
    if ty == QuantType::F32 {
        for word in bytes.as_chunks_mut::<4>().0 {
            let scaled = f64::from(f32::from_le_bytes(*word)) * factor;
            *word = (scaled as f32).to_le_bytes();
        }
        return Ok(());
    }
    let offsets = scale_offsets(ty).ok_or_else(|| {
        Error::out_of_range(
            "type to scale",
            ty,
            "one with a half as the scale of each block",
        )
    })?;
    if !bytes.len().is_multiple_of(ty.block_bytes()) {
        let expected = format!("a multiple of {}", ty.block_bytes());
        return Err(Error::out_of_range("bytes to scale", bytes.len(), expected));
    }
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        for at in offsets {
            let old = F16Le::from_bits(u16::from_le_bytes([block[*at], block[at + 1]]));
            // A half times a factor in f64, rounded twice at worst where f32 is on the edge.
            let new = F16Le::from_f32((f64::from(old.to_f32()) * factor) as f32);
            if !new.to_f32().is_finite() {
                return Err(Error::out_of_range(
                    "a scale",
                    new.to_f32(),
                    "at most 65504",
                ));
            }
            block[*at..at + 2].copy_from_slice(&new.to_bits().to_le_bytes());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_example_comes_out() {
        let (wanted, found) = ([1.0, 2.0, 0.0, 1.0], [0.5, 1.5, 0.5, 0.5]);
        let error = |factor: f64| -> f64 {
            let pairs = wanted.iter().zip(&found);
            pairs.map(|(w, f)| (w - factor * f).powi(2)).sum()
        };
        let best = alpha(&wanted, &found, 0.0);
        assert!((best - 4.0 / 3.0).abs() < 1e-12);
        assert!((error(1.0) - 1.0).abs() < 1e-12 && (error(best) - 2.0 / 3.0).abs() < 1e-12);
        assert!((alpha(&wanted, &found, 0.5) - 7.0 / 6.0).abs() < 1e-12);
        assert!((alpha(&wanted, &[0.0; 4], 0.0) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn scaled_blocks_decode_to_scaled_weights() {
        let values: Vec<f32> = (0..256).map(|i| (i as f32 * 0.37).sin()).collect();
        for ty in QuantType::ALL.iter().copied() {
            if !thalweg_quant::encode::can_encode(ty) || !can_scale(ty) {
                continue;
            }
            let mut bytes = vec![0; ty.row_bytes(256).expect("whole blocks")];
            thalweg_quant::encode::encode_row(ty, &values, None, &mut bytes).expect("encodable");
            let (mut before, mut after) = (vec![0.0; 256], vec![0.0; 256]);
            ty.decode_row(&bytes, &mut before).expect("decodable");
            scale_blocks(ty, &mut bytes, 1.308).expect("scalable");
            ty.decode_row(&bytes, &mut after).expect("decodable");
            // Q4_K subtracts two products, each with its own rounding.
            let tolerance = 1.5e-3 * before.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
            for (x, y) in before.iter().zip(&after) {
                assert!((x * 1.308 - y).abs() < tolerance, "{ty}: {x} {y}");
            }
        }
        assert!(scale_blocks(QuantType::Q2_0, &mut [0; 17], 1.0).is_err());
        assert!(scale_blocks(QuantType::BF16, &mut [0; 2], 1.0).is_err());
        let mut huge = [0xff, 0x7b];
        assert!(scale_blocks(QuantType::F16, &mut huge, 1.5).is_err());
    }
}
