//! Which rows of the n-gram table a token needs: a pure function of token ids.
//!
//! Source: Qwen3.8-Flash-Next (`qwen4exp`), as in llama.cpp and transformers.

/// Hash of the last `n` token ids into table rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NgramHash {
    multipliers: Vec<u64>,
    /// (modulus, offset) of each head; orders rising, heads of an order together.
    heads: Vec<(u64, u64)>,
    reset: u32,
}

impl NgramHash {
    /// A hash over windows of `multipliers.len()` tokens (at least 2).
    ///
    /// `heads` holds (modulus, offset) for each head, `heads.len() / (n - 1)` heads an order;
    /// every modulus must be positive. `reset` is the id that cuts a window.
    ///
    /// Returns `None` if the counts do not fit together or a modulus is zero.
    pub fn new(multipliers: Vec<u64>, heads: Vec<(u64, u64)>, reset: u32) -> Option<Self> {
        let orders = multipliers.len().checked_sub(1).filter(|o| *o > 0)?;
        let whole = !heads.is_empty() && heads.len().is_multiple_of(orders);
        let positive = heads.iter().all(|(modulus, _)| *modulus > 0);
        (whole && positive).then_some(Self {
            multipliers,
            heads,
            reset,
        })
    }

    /// Rows that each token needs.
    pub fn rows_per_token(&self) -> usize {
        self.heads.len()
    }

    /// Appends the rows of `tokens[from..]` to `out`, `[n_tokens, rows_per_token]`.
    ///
    /// `tokens` is the whole sequence: windows reach back before `from`. Walking back from a
    /// token, everything from the first missing or reset token on reads as the reset token; the
    /// token itself does not cut its own window.
    pub fn rows(&self, tokens: &[u32], from: usize, out: &mut Vec<u64>) {
        let n = self.multipliers.len();
        let per_order = self.heads.len() / (n - 1);
        for position in from..tokens.len() {
            let mut cut = false;
            let mut mixed = 0;
            for back in 0..n {
                let token = match position.checked_sub(back) {
                    Some(p) if back == 0 => tokens[p],
                    Some(p) if !cut && tokens[p] != self.reset => tokens[p],
                    _ => {
                        cut = true;
                        self.reset
                    }
                };
                mixed ^= u64::from(token).wrapping_mul(self.multipliers[back]);
                if back > 0 {
                    let heads = &self.heads[(back - 1) * per_order..back * per_order];
                    out.extend(
                        heads
                            .iter()
                            .map(|(modulus, offset)| mixed % modulus + offset),
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(hash: &NgramHash, tokens: &[u32], from: usize) -> Vec<u64> {
        let mut out = Vec::new();
        hash.rows(tokens, from, &mut out);
        out
    }

    #[test]
    fn a_reset_token_cuts_the_windows_after_it() {
        let hash = NgramHash::new(vec![3, 5, 7], vec![(11, 0), (13, 11)], 9).unwrap();
        assert_eq!(rows(&hash, &[4, 9, 2], 0), [0, 15, 4, 20, 10, 18]);
    }

    #[test]
    fn a_chunk_border_changes_nothing() {
        let hash = NgramHash::new(vec![3, 5, 7], vec![(11, 0), (13, 11)], 9).unwrap();
        let tokens = [4, 9, 2, 1, 1, 9, 9, 3];
        let whole = rows(&hash, &tokens, 0);
        for cut in 0..tokens.len() {
            assert_eq!(rows(&hash, &tokens, cut), whole[2 * cut..]);
        }
    }

    /// The constants of Qwen3.8-Flash-Next.
    #[test]
    fn the_published_constants_give_the_published_rows() {
        let moduli = [
            20000003,
            20000023,
            20000033,
            20000047,
            20000059,
            20000063,
            20000069,
            20000077,
            20000081,
            20000093,
            20000107,
            20000147,
            20000153,
            20000159,
            20000161,
            20000171u64,
        ];
        let mut offset = 0;
        let heads = moduli.map(|m| {
            let head = (m, offset);
            offset += m;
            head
        });
        let multipliers = vec![23703573157769, 20109073645365, 8052911324071];
        let eos = 248044;
        let hash = NgramHash::new(multipliers, heads.to_vec(), eos).unwrap();
        assert_eq!(
            rows(&hash, &[9707], 0),
            [
                16410909, 39682429, 55103279, 60931720, 87006904, 116506179, 131512017, 152932897,
                169641436, 182022480, 209277433, 237891023, 256841529, 277007269, 290665954,
                300984276
            ]
        );
        assert_eq!(
            rows(&hash, &[9707, 11, 1879], 2),
            [
                6380558, 26411572, 56460672, 78566983, 94693008, 106742196, 124822692, 148942556,
                164226950, 190352573, 210933682, 238908951, 242182004, 265475238, 299910982,
                312121804
            ]
        );
    }

    #[test]
    fn impossible_shapes_are_refused() {
        assert_eq!(NgramHash::new(vec![1], vec![(5, 0)], 0), None);
        assert_eq!(NgramHash::new(vec![1, 2, 3], vec![(5, 0); 3], 0), None);
        assert_eq!(NgramHash::new(vec![1, 2], vec![(0, 0)], 0), None);
        assert_eq!(NgramHash::new(vec![1, 2], vec![], 0), None);
    }
}
