//! `thalweg-gguf` knows how large the blocks of each type are, `thalweg-quant` what they mean.
//! Neither knows the other; here their tables are compared.

use thalweg_gguf::TensorType;
use thalweg_quant::QuantType;

#[test]
fn both_crates_agree_on_every_type_that_can_be_decoded() {
    for quant in QuantType::ALL {
        let name = quant.name();
        let ty = TensorType::from_id(quant.ggml_type()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ty.name(), name);
        assert_eq!(ty.block_len(), quant.block_len() as u64, "{name}");
        assert_eq!(ty.block_bytes(), quant.block_bytes() as u64, "{name}");
        let n = 512 * quant.block_len();
        let row_bytes = quant.row_bytes(n).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(ty.row_bytes(n as u64), Some(row_bytes as u64), "{name}");
        assert_eq!(
            ty.row_bytes(n as u64 + 1).is_some(),
            quant.row_bytes(n + 1).is_ok(),
            "{name}"
        );
    }
}

#[test]
fn only_integers_and_helper_types_cannot_be_decoded() {
    let left: Vec<&str> = TensorType::ALL
        .iter()
        .filter(|ty| QuantType::from_ggml(ty.id()).is_none())
        .map(|ty| ty.name())
        .collect();
    // Q8_1 and Q8_K are formats of activations that no file holds.
    assert_eq!(
        left,
        ["Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64", "NVFP4"]
    );
}
