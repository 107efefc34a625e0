use proptest::prelude::*;

use super::*;
use crate::metrics::score;

fn header(n_ctx: usize, n_vocab: usize, n_chunks: usize) -> BaseHeader {
    let tokens = (0..n_ctx * n_chunks).map(|i| (i % n_vocab) as u32);
    BaseHeader::new(n_ctx, n_vocab, tokens.collect()).unwrap()
}

/// A file whose rows hold these logits in turn.
fn file(header: &BaseHeader, rows: &[Vec<f32>]) -> Vec<u8> {
    let mut writer = BaseWriter::new(header.clone(), Vec::new()).unwrap();
    for i in 0..header.rows().len() * header.n_chunks() {
        writer.push(&rows[i % rows.len()]).unwrap();
    }
    writer.finish().unwrap()
}

fn reader(bytes: &[u8]) -> Result<BaseReader<&[u8]>> {
    BaseReader::new(bytes, bytes.len() as u64)
}

#[test]
fn a_row_has_the_published_codes() {
    let header = header(4, 3, 1);
    assert_eq!((header.rows(), header.row_bytes()), (2..3, 16));
    let bytes = file(&header, &[vec![1.0, 0.0, -20.0]]);
    let number = |at: usize| f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let code = |at: usize| u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
    assert_eq!(&bytes[..8], b"_logits_");
    let row = 8 + 12 + 4 * 4;
    assert_eq!(format!("{:.9e}", number(row)), "2.441443503e-4");
    // An f32 there is off by up to 1e-6.
    assert!((f64::from(number(row + 4)) + 16.313_262).abs() < 2e-6);
    assert_eq!(
        [8, 10, 12, 14].map(|at| code(row + at)),
        [65_535, 61_439, 0, 0]
    );
    assert_eq!(bytes.len() as u64, header.file_bytes().unwrap());
}

#[test]
fn rows_come_back_in_order_with_their_places() {
    let header = header(7, 5, 3);
    let rows: Vec<Vec<f32>> = (0..9)
        .map(|i| (0..5).map(|v| ((i * 5 + v) % 7) as f32).collect())
        .collect();
    let bytes = file(&header, &rows);
    let mut reader = reader(&bytes).unwrap();
    assert_eq!(reader.header(), &header);
    let mut places = Vec::new();
    while let Some(row) = reader.next_row().unwrap() {
        let all: f64 = (0..5)
            .map(|t| f64::from(row.log_prob(t).unwrap()).exp())
            .sum();
        assert!((all - 1.0).abs() < 1e-4, "{all}");
        assert_eq!(row.log_prob(5), None);
        places.push((row.chunk, row.position));
    }
    let expected: Vec<_> = (0..3).flat_map(|c| (3..6).map(move |p| (c, p))).collect();
    assert_eq!(places, expected);
    let set = header.windows("base").unwrap();
    assert_eq!(set.windows()[2].scored(), 4..7);
    assert_eq!(set.windows()[2].tokens(), &header.tokens()[14..]);
}

#[test]
fn a_divergence_from_a_file_is_near_the_exact_one() {
    let reference: Vec<f32> = (0..300).map(|i| ((i * 37 % 101) as f32) * 0.11).collect();
    let test: Vec<f32> = (0..300).map(|i| ((i * 53 % 97) as f32) * 0.12).collect();
    let header = header(3, 300, 1);
    let bytes = file(&header, std::slice::from_ref(&reference));
    let mut reader = reader(&bytes).unwrap();
    let row = reader.next_row().unwrap().unwrap();
    let found = row.score(&test, 17).unwrap();
    let exact = score(&reference, &test, 17).unwrap();
    assert!(
        (found.kld / exact.kld - 1.0).abs() < 1e-3,
        "{found:?} {exact:?}"
    );
    assert!((found.reference_nll - exact.reference_nll).abs() < 2e-4);
    assert!((found.test_nll - exact.test_nll).abs() < 1e-12);
    assert_eq!(found.same_top1, exact.same_top1);
    // What the file has lost of a distribution is not made up for.
    let own = row.score(&reference, 17).unwrap();
    assert!(own.kld.abs() < 1e-4 && own.same_top1);
    for wrong in [row.score(&test[1..], 1), row.score(&test, 300)] {
        assert!(wrong.is_err());
    }
}

#[test]
fn flat_rows_have_one_code() {
    let header = header(3, 4, 1);
    let bytes = file(&header, &[vec![2.5; 4]]);
    let mut reader = reader(&bytes).unwrap();
    let row = reader.next_row().unwrap().unwrap();
    for token in 0..4 {
        assert!((row.log_prob(token).unwrap() + 4f32.ln()).abs() < 1e-6);
    }
}

#[test]
fn writers_refuse_what_no_reader_takes() {
    let header = header(4, 3, 1);
    let message = |logits: &[f32]| {
        let mut writer = BaseWriter::new(header.clone(), Vec::new()).unwrap();
        writer.push(logits).unwrap_err().to_string()
    };
    assert!(message(&[0.0; 2]).contains("2 given, expected 3"));
    assert!(message(&[0.0, f32::NAN, 0.0]).contains("token 1"));
    assert!(message(&[f32::NEG_INFINITY; 3]).contains("minus infinity"));
    let mut writer = BaseWriter::new(header.clone(), Vec::new()).unwrap();
    writer.push(&[0.0, f32::NEG_INFINITY, -1.0]).unwrap();
    assert!(
        writer
            .push(&[0.0; 3])
            .unwrap_err()
            .to_string()
            .contains("2 given")
    );
    let writer = BaseWriter::new(header, Vec::new()).unwrap();
    assert!(writer.finish().is_err());
    for bad in [
        BaseHeader::new(2, 3, vec![0; 2]),
        BaseHeader::new(4, 0, vec![0; 4]),
        BaseHeader::new(4, 3, vec![0; 5]),
        BaseHeader::new(4, 3, Vec::new()),
        BaseHeader::new(4, 3, vec![0, 1, 2, 3]),
    ] {
        assert!(bad.is_err(), "{bad:?}");
    }
}

#[test]
fn damage_is_named() {
    let bytes = file(&header(4, 3, 1), &[vec![1.0, 0.0, -20.0]]);
    let message = |at: usize, patch: &[u8]| {
        let mut bytes = bytes.clone();
        bytes[at..at + patch.len()].copy_from_slice(patch);
        let rows = reader(&bytes).and_then(|mut reader| reader.next_row().map(|_| ()));
        rows.unwrap_err().to_string()
    };
    assert!(message(0, b"x").contains("\"xlogits_\""));
    assert!(message(8, &(-4i32).to_le_bytes()).contains("n_ctx is -4"));
    assert!(message(12, &0i32.to_le_bytes()).contains("n_vocab is 0"));
    assert!(message(16, &i32::MAX.to_le_bytes()).contains("52 bytes"));
    assert!(message(20, &3u32.to_le_bytes()).contains("token of entry 0 is 3"));
    let row = 36;
    for scale in [f32::NAN, -1.0, f32::INFINITY, 1.0] {
        let said = message(row, &scale.to_le_bytes());
        assert!(said.contains("of entry 0"), "{said}");
    }
    for n in 0..bytes.len() {
        assert!(reader(&bytes[..n]).is_err(), "{n}");
    }
    // An input that is shorter than was said.
    let short = BaseReader::new(&bytes[..40], bytes.len() as u64);
    assert!(matches!(
        short.unwrap().next_row(),
        Err(Error::Stream { .. })
    ));
}

proptest! {
    #[test]
    fn codes_are_off_by_half_a_step(
        logits in prop::collection::vec(-40.0f32..40.0, 1..60),
    ) {
        let n = logits.len();
        let header = BaseHeader::new(3, n, vec![0; 3]).unwrap();
        let bytes = file(&header, std::slice::from_ref(&logits));
        let mut reader = reader(&bytes).unwrap();
        let row = reader.next_row().unwrap().unwrap();
        let mut total = LogSumExp::default();
        total.push(&logits);
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for (token, z) in logits.iter().enumerate() {
            let exact = f64::from(z.max(max - DEPTH)) - total.value();
            let found = f64::from(row.log_prob(token as u32).unwrap());
            prop_assert!((found - exact).abs() < 1.3e-4, "{found} for {exact}");
        }
    }
}
