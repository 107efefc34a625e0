//! What a schedule must know of a bound model, whatever its architecture.

use thalweg_backend::{ExpertView, MatView};
use thalweg_quant::QuantType;

use crate::{NgramHash, Result};

/// Sizes of a model and the places of what is not resident.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Layers that are run.
    pub n_layer: usize,
    /// Elements of a block's input.
    pub n_embd: usize,
    /// Elements of the residual between layers (streams side by side).
    pub residual_len: usize,
    /// Vocabulary size.
    pub n_vocab: usize,
    /// Longest sequence that the model was made for.
    pub n_ctx_train: usize,
    /// Routed experts of each layer.
    pub experts: Vec<ExpertSpec>,
    /// The n-gram table, if the model has one.
    pub rows: Option<RowSpec>,
    /// Bytes of the tensors that are resident.
    pub dense_bytes: u64,
}

/// The routed experts of one layer.
#[derive(Debug, Clone)]
pub struct ExpertSpec {
    /// Experts in the layer.
    pub n_expert: usize,
    /// Experts chosen per token.
    pub k: usize,
    /// Stored type of the router's weights.
    pub router: QuantType,
    /// gate, up and down, in this order.
    pub parts: [ExpertPart; 3],
}

/// Where one matrix of every expert of a layer is.
#[derive(Debug, Clone)]
pub struct ExpertPart {
    /// Tensor that holds it.
    pub tensor: String,
    /// Shard of the file set.
    pub shard: usize,
    /// Offset of expert 0 in the shard.
    pub offset_bytes: u64,
    /// Bytes from one expert to the next.
    pub stride_bytes: u64,
    /// Bytes of one expert.
    pub len_bytes: u64,
    /// Stored type.
    pub ty: QuantType,
    /// Weights per row.
    pub n_in: usize,
    /// Rows.
    pub n_out: usize,
}

impl ExpertSpec {
    /// Views the bytes of gate, up and down as one expert.
    ///
    /// # Errors
    /// [`Error::Backend`](crate::Error::Backend) if a slice has another length than its part.
    pub fn view<'a>(&self, bytes: [&'a [u8]; 3]) -> Result<ExpertView<'a>> {
        let mat = |i: usize| {
            let p = &self.parts[i];
            MatView::new(p.ty, p.n_in, p.n_out, bytes[i])
        };
        Ok(ExpertView {
            gate: mat(0)?,
            up: mat(1)?,
            down: mat(2)?,
        })
    }
}

/// A table that stays on disk and is read by row.
#[derive(Debug, Clone)]
pub struct RowSpec {
    /// Tensor that holds it.
    pub tensor: String,
    /// Shard of the file set.
    pub shard: usize,
    /// Offset of row 0 in the shard.
    pub offset_bytes: u64,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows.
    pub n_rows: u64,
    /// Which rows a token needs.
    pub hash: NgramHash,
}
