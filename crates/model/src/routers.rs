//! Router weights in other precisions than the file's.
//!
//! Owns which copies of a router a model keeps and the conversion between their formats; not what a
//! router decides. Memory: each copy is a dense weight and is counted as one.

use thalweg_quant::QuantType;

use crate::Result;

/// Copies of every layer's router that are kept besides, or instead of, the stored one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers write `RouterOptions { field, ..default }`"
)]
pub struct RouterOptions {
    /// Routers decide with weights rounded to bf16. Lossy unless the file stores bf16: another
    /// expert may be chosen.
    pub bf16: bool,
    /// [`predict`](crate::Architecture::predict) uses a Q8_0 copy: a guess then costs a fraction of
    /// the memory traffic, and no decision is made with it.
    pub guess_q8: bool,
    /// Keep the stored weights where neither of the others is them, so that
    /// [`stored_router`](crate::Architecture::stored_router) can tell what they would say.
    pub keep_stored: bool,
}

/// Formats of one router's copies; one that is missing is the same as the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Formats {
    /// What chooses experts.
    pub(crate) deciding: QuantType,
    /// What guesses; `None` where the deciding one does.
    pub(crate) guessing: Option<QuantType>,
    /// The stored weights; `None` where they decide, or nobody asks for them.
    pub(crate) kept: Option<QuantType>,
}

impl RouterOptions {
    /// The copies of a router that the file holds as `stored`.
    pub(crate) fn formats(self, stored: QuantType) -> Formats {
        let deciding = match self.bf16 {
            true => QuantType::BF16,
            false => stored,
        };
        let guessing = (self.guess_q8 && deciding != QuantType::Q8_0).then_some(QuantType::Q8_0);
        let kept = (self.keep_stored && deciding != stored).then_some(stored);
        Formats {
            deciding,
            guessing,
            kept,
        }
    }
}

impl Formats {
    fn all(self) -> impl Iterator<Item = QuantType> {
        [Some(self.deciding), self.guessing, self.kept]
            .into_iter()
            .flatten()
    }

    /// Bytes of all copies of `n_out` rows of `n_in` weights; `None` where a row is not a whole
    /// number of some format's blocks.
    pub(crate) fn bytes(self, n_in: usize, n_out: usize) -> Option<u64> {
        self.all()
            .map(|ty| Some((ty.row_bytes(n_in).ok()? as u64).saturating_mul(n_out as u64)))
            .try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)))
    }
}

/// Rows of `n_in` weights from one format in another, each value rounded to the nearest.
pub(crate) fn convert(
    from: QuantType,
    bytes: &[u8],
    n_in: usize,
    to: QuantType,
) -> Result<Vec<u8>> {
    let mut values = vec![0.0; n_in];
    let mut row = vec![0; to.row_bytes(n_in)?];
    let mut out = Vec::new();
    for stored in bytes.chunks_exact(from.row_bytes(n_in)?.max(1)) {
        from.decode_row(stored, &mut values)?;
        to.quantize_row(&values, &mut row)?;
        out.extend_from_slice(&row);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: RouterOptions = RouterOptions {
        bf16: true,
        guess_q8: true,
        keep_stored: true,
    };

    #[test]
    fn no_copy_is_kept_twice() {
        let plain = RouterOptions::default().formats(QuantType::F32);
        assert_eq!(plain.bytes(64, 3), Some(64 * 3 * 4));
        assert_eq!((plain.guessing, plain.kept), (None, None));

        let all = BOTH.formats(QuantType::F32);
        assert_eq!(all.deciding, QuantType::BF16);
        assert_eq!(all.guessing, Some(QuantType::Q8_0));
        assert_eq!(all.kept, Some(QuantType::F32));
        assert_eq!(all.bytes(64, 3), Some(3 * (128 + 68 + 256)));

        let bf16 = BOTH.formats(QuantType::BF16);
        assert_eq!((bf16.deciding, bf16.kept), (QuantType::BF16, None));
        let q8 = RouterOptions {
            bf16: false,
            ..BOTH
        }
        .formats(QuantType::Q8_0);
        assert_eq!((q8.guessing, q8.kept), (None, None));
    }

    #[test]
    fn a_row_that_blocks_do_not_fill_has_no_copy() {
        assert_eq!(BOTH.formats(QuantType::F32).bytes(48, 3), None);
        let bf16 = RouterOptions {
            guess_q8: false,
            ..BOTH
        };
        assert!(bf16.formats(QuantType::F32).bytes(48, 3).is_some());
    }

    #[test]
    fn conversion_rounds_to_the_nearest() {
        let values = [1.0_f32, 1.0 + 1.0 / 512.0, 1.0 + 3.0 / 512.0, -2.5];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let found = convert(QuantType::F32, &bytes, 2, QuantType::BF16).unwrap();
        let mut back = [0.0; 4];
        QuantType::BF16.decode_row(&found, &mut back).unwrap();
        // bf16 has steps of 1/128 above 1: the second goes down, the third up.
        let expected = [1.0_f32, 1.0, 1.0 + 1.0 / 128.0, -2.5];
        assert_eq!(back.map(f32::to_bits), expected.map(f32::to_bits));
    }
}
