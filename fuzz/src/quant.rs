//! `thalweg-quant`.

use thalweg_quant::QuantType;

use crate::input::Input;

/// Decodes rows of a format and a length that the input chooses, right and wrong ones, and
/// quantizes the input's bytes as numbers.
pub fn quant_rows(data: &[u8]) {
    let mut input = Input::new(data);
    let format = QuantType::ALL[input.below(QuantType::ALL.len())];
    let is_wrong = input.below(8);
    let bytes = input.rest();
    let whole = bytes.len() / format.block_bytes();
    let n = whole * format.block_len();
    let row = &bytes[..whole * format.block_bytes()];
    assert_eq!(format.row_bytes(n).expect("whole blocks"), row.len());

    let mut values = vec![0.0; n];
    format.decode_row(row, &mut values).expect("lengths agree");
    let expected = values.iter().position(|value| !value.is_finite());
    let found = format.first_non_finite(row).expect("whole blocks");
    // The exponent 255 of MXFP4 stands for NaN, although it decodes to numbers as in ggml.
    if format == QuantType::MXFP4 {
        assert!(expected.is_none() || found.is_some_and(|at| Some(at) <= expected));
    } else {
        assert_eq!(found, expected, "{}", format.name());
    }
    if expected.is_none() {
        let x = vec![1.0; n];
        let _ = format.dot_row(row, &x).expect("lengths agree");
    }

    // Lengths that do not agree are errors; only a length can turn out right after all.
    let _ = format.first_non_finite(bytes);
    let mut other = vec![0.0; n + is_wrong];
    assert_eq!(format.decode_row(row, &mut other).is_ok(), is_wrong == 0);
    if bytes.len() != row.len() {
        assert!(format.decode_row(bytes, &mut values).is_err());
    }

    quantize(format, bytes);
}

fn quantize(format: QuantType, bytes: &[u8]) {
    let words = bytes.as_chunks::<4>().0;
    let n = words.len() / format.block_len() * format.block_len();
    let values: Vec<f32> = words[..n]
        .iter()
        .map(|word| f32::from_le_bytes(*word))
        .collect();
    let mut row = vec![0; format.row_bytes(n).expect("whole blocks")];
    if format.quantize_row(&values, &mut row).is_err() {
        return;
    }
    assert!(format.can_quantize());
    assert!(
        values.iter().all(|value| value.is_finite()),
        "{} took NaN",
        format.name()
    );
    assert_eq!(
        format.first_non_finite(&row).expect("whole blocks"),
        None,
        "{}",
        format.name()
    );
}
