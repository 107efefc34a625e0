//! What a tensor is for, by its name.
//!
//! Owns the reading of llama.cpp's tensor names; nothing else in this crate looks into them.
//! Memory: none.

use thalweg_gguf::TensorInfo;

/// One of the matrices of a gated feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Part {
    /// `silu` is applied to its output.
    Gate,
    /// Multiplied with the gate.
    Up,
    /// Gate rows, then up rows, of each expert.
    GateUp,
    /// Back to the width of the residual.
    Down,
}

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// A matrix of every routed expert of a layer, `[n_in, n_out, n_expert]`.
    Expert {
        /// The layer.
        layer: usize,
        /// Which matrix.
        part: Part,
    },
    /// Anything else that has one entry for each routed expert, along its last dimension: scales and
    /// biases.
    ByExpert {
        /// The layer.
        layer: usize,
    },
    /// The router, `[n_embd, n_expert]`.
    Router {
        /// The layer.
        layer: usize,
    },
    /// A matrix of the shared expert.
    Shared {
        /// The layer.
        layer: usize,
        /// Which matrix.
        part: Part,
    },
    /// The table of n-gram rows.
    Table,
    /// Any other matrix that is multiplied with or looked up in.
    Dense,
    /// Norms, convolutions, biases, constants.
    Other,
}

impl Role {
    /// The role of a tensor.
    #[must_use]
    pub fn of(tensor: &TensorInfo) -> Self {
        let layered = || {
            let (layer, rest) = tensor.name.strip_prefix("blk.")?.split_once('.')?;
            Some((layer.parse().ok()?, rest))
        };
        if tensor.name == "per_layer_token_embd.weight" {
            return Self::Table;
        }
        if let Some((layer, rest)) = layered()
            && let Some(role) = Self::in_layer(layer, rest)
        {
            return role;
        }
        let is_matrix = tensor.shape().len() == 2 && tensor.name.ends_with(".weight");
        // Convolutions and norms of several streams have two dimensions as well.
        let is_small = ["norm", "conv1d", "ffn_gate_inp_shexp"]
            .iter()
            .any(|word| tensor.name.contains(word));
        match is_matrix && !is_small {
            true => Self::Dense,
            false => Self::Other,
        }
    }

    fn in_layer(layer: usize, name: &str) -> Option<Self> {
        let expert = |part| Some(Self::Expert { layer, part });
        let shared = |part| Some(Self::Shared { layer, part });
        match name {
            "ffn_gate_exps.weight" => expert(Part::Gate),
            "ffn_up_exps.weight" => expert(Part::Up),
            "ffn_gate_up_exps.weight" => expert(Part::GateUp),
            "ffn_down_exps.weight" => expert(Part::Down),
            "ffn_gate_shexp.weight" => shared(Part::Gate),
            "ffn_up_shexp.weight" => shared(Part::Up),
            "ffn_down_shexp.weight" => shared(Part::Down),
            "ffn_gate_inp.weight" => Some(Self::Router { layer }),
            "ffn_gate_inp.bias" | "exp_probs_b.bias" => Some(Self::ByExpert { layer }),
            _ => {
                let (stem, kind) = name.rsplit_once('.')?;
                let is_by_expert = stem.starts_with("ffn_")
                    && stem.ends_with("_exps")
                    && (kind == "scale" || kind == "bias");
                is_by_expert.then_some(Self::ByExpert { layer })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_gguf::{Metadata, StreamWriter, TensorSpec, TensorType};

    fn role(name: &str, shape: &[u64]) -> Role {
        let spec = TensorSpec::new(name, TensorType::F32, shape).expect("valid");
        let writer = StreamWriter::new(Vec::new(), &Metadata::new(), &[spec]).expect("valid");
        Role::of(&writer.tensors()[0])
    }

    #[test]
    fn names_have_the_roles_that_the_architecture_gives_them() {
        let part = Part::Down;
        assert_eq!(
            role("blk.12.ffn_down_exps.weight", &[64, 256, 8]),
            Role::Expert { layer: 12, part }
        );
        assert_eq!(
            role("blk.0.ffn_down_shexp.weight", &[64, 256]),
            Role::Shared { layer: 0, part }
        );
        assert_eq!(
            role("blk.3.ffn_gate_inp.weight", &[64, 8]),
            Role::Router { layer: 3 }
        );
        for name in [
            "ffn_down_exps.scale",
            "ffn_gate_up_exps.bias",
            "exp_probs_b.bias",
        ] {
            let found = role(&format!("blk.3.{name}"), &[8]);
            assert_eq!(found, Role::ByExpert { layer: 3 }, "{name}");
        }
        assert_eq!(role("per_layer_token_embd.weight", &[32, 9]), Role::Table);
        for name in [
            "output.weight",
            "blk.1.attn_q.weight",
            "blk.1.hc_ffn_up.weight",
        ] {
            assert_eq!(role(name, &[64, 8]), Role::Dense, "{name}");
        }
        for name in [
            "blk.1.ssm_conv1d.weight",
            "blk.1.hc_ffn_norm.weight",
            "blk.1.ssm_dt.bias",
        ] {
            assert_eq!(role(name, &[4, 8]), Role::Other, "{name}");
        }
        assert_eq!(
            role("blk.1.ffn_gate_inp_shexp.weight", &[64, 1]),
            Role::Other
        );
        assert_eq!(role("blk.x.ffn_gate_inp.weight", &[64]), Role::Other);
    }
}
